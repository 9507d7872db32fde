"""A judge off the path: a model that says, after the fact, whether one answer serves two questions."""
