"""Experiment: the admission policies on one trace, by the real scheduler on a simulated machine and clock."""
