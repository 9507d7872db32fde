"""Attention over paged keys and values, one file per way of computing it."""
