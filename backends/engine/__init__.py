"""The engine: token ids in, token ids out. It imports nothing of ours."""
