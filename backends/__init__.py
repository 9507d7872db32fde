"""Where answers come from: the built-in engine, remote APIs, and the echo for demos and tests."""
