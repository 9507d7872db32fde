"""The model: its shape, its weights, and the files they come from."""
