"""Text on one side, the engine's token ids on the other: templates, tokenizer, stop strings, detokenising."""
