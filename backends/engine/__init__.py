"""The engine: token ids in, token ids out, batched at every step; it imports nothing else of ours."""
