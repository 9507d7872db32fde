"""What computes a decided step; it decides nothing."""
