"""Checks around input and output, own and borrowed, and the hold-back that makes them safe on streams."""
