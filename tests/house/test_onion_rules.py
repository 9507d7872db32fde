"""Rules of the onion that show in the source: nobody drives the next handler bare, or sets a context variable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gateway", "cache", "validators", "orchestration", "logging_layer", "backends", "lab")


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Give every source file of ours, parsed."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def test_nobody_iterates_over_the_next_handler_without_aclosing() -> None:
    bare = [
        f"{path}:{node.lineno}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFor)
        and isinstance(node.iter, ast.Call)
        and ast.unparse(node.iter.func).rpartition(".")[2].lstrip("_") in {"next", "handler", "backend"}
    ]
    assert bare == []


def test_no_context_variable_is_used_so_none_is_set_across_a_yield() -> None:
    users = [
        str(path)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and "contextvars" in ast.unparse(node)
    ]
    assert users == []
