"""`lamina bench gateway`: what the gateway adds to a provider, beside other gateways."""
