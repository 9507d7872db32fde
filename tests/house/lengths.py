"""Refuse what outgrew its room: a file over 500 lines, a function over 60 without a reason on its `def` line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
INDEX_LINE = re.compile(r"^\s*(--?(index-url|extra-index-url|i|find-links)\b|.*@ https?://)", re.M)
REASON = "# long:"


def tracked_files() -> list[Path]:
    """List what git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, names.split("\0")) if path.is_file()]


def problems_of(path: Path) -> list[str]:
    """Say what is wrong with one file's size or, for requirement files, its lines."""
    if path.parts[0] == "requirements":
        return [f"{path}: names an index"] if INDEX_LINE.search(path.read_text()) else []
    if path.suffix not in (".py", ".cpp", ".h", ".js", ".css", ".html"):
        return []
    text = path.read_text()
    lines = text.splitlines()
    found = [f"{path}: {len(lines)} lines, at most {MAX_FILE_LINES}"] if len(lines) > MAX_FILE_LINES else []
    if path.suffix != ".py":
        return found
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES and REASON not in lines[node.lineno - 1]:
            found.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")
    return found


def main() -> int:
    """Print every problem; exit with 1 if there is one."""
    problems = [problem for path in tracked_files() for problem in problems_of(path)]
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
