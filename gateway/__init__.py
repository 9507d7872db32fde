"""HTTP in, HTTP out: the only folder that sees all the others."""
