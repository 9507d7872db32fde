"""The shape of the pipe (`core`) and, on it alone, what applications build from calls."""
