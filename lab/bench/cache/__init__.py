"""`lamina bench cache`: what the semantic cache serves, and what it serves wrongly, beside other rules."""
