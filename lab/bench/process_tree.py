"""What a tree of processes uses: CPU seconds and resident memory, read from Linux' /proc.

A process that is gone when it is looked at counts nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path


def cpu_s(root: int, *, with_ended: bool = False) -> float:
    """Add up the CPU seconds of a process and of all that live below it, `with_ended` of those they reaped, too."""
    last = 15 if with_ended else 13
    return sum(sum(map(int, _stat(pid)[11:last])) for pid in tree(root)) / os.sysconf("SC_CLK_TCK")


def rss_by_process(root: int) -> dict[str, float]:
    """Return the resident memory of each process of the tree by its name, in MB; what they share counts in each."""
    sizes: dict[str, float] = {}
    for pid in tree(root):
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            sizes[_name(pid)] = sizes.get(_name(pid), 0.0) + pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return sizes


def rss_mb(pid: int | None = None) -> float:
    """Return the resident memory of one process in MB, our own by default; none for one that is gone."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def tree(root: int) -> Sequence[int]:
    """Return the ids of a process and of everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        found.append(pid := waiting.pop())
        waiting.extend(children.get(pid, ()))
    return found


def _name(pid: int) -> str:
    """Name a process by the module that Python runs, else by its program."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return words[words.index("-m") + 1] if "-m" in words else words[0].rpartition("/")[2]


def _stat(pid: int) -> Sequence[str]:
    """Return the fields of /proc/PID/stat after the command's name; none for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ()
