"""How well the size of a request is told from its text: a small labelled set, bars chosen on one half of it."""
