"""The supervisor: one process without torch that starts every other one, watches them, and ends them in order."""
