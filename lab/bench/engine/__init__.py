"""`lamina bench engine`: the engine under load, alone or beside other engines on the same machine and model."""
