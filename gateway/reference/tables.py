"""Markdown tables."""

from __future__ import annotations


def table(head: list[str], rows: list[list[str]]) -> str:
    """Write a table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
