"""`lamina bench`: what the engine, the gateway and the cache do on this machine, beside others."""
