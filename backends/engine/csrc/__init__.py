"""The CPU kernels: their source, how it is compiled, and the check that they agree with torch."""
