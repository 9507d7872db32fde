"""Load tests, simulators and experiments."""
