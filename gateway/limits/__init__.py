"""Keys, limits and budgets: who a key is, what it may use, and one atomic step that decides."""
