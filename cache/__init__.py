"""What was answered before: exact and semantic caches, their stores, and the owner of encoder and index."""
