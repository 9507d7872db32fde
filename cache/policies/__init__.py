"""Policies: what a hit is worth, given its odds and the price of a wrong answer."""
