"""From logits to tokens: pure functions of what they are given."""
