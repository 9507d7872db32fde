"""Where keys and values live: pages, and the tree that finds them again."""
