"""What a tree of processes uses: CPU seconds and resident memory, read from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def cpu_s(root: int) -> float:
    """Add up the CPU seconds of a process and of everything below it that lives."""
    return sum(cpu_by_process(root).values())


def cpu_by_process(root: int) -> dict[str, float]:
    """Return the CPU seconds of each process of the tree by its name, those of one name together."""
    seconds: dict[str, float] = {}
    for pid in _tree(root):
        with contextlib.suppress(OSError, ValueError):
            fields = _stat(pid)
            used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            seconds[_name(pid)] = seconds.get(_name(pid), 0.0) + used_s
    return seconds


def rss_by_process(root: int) -> dict[str, float]:
    """Return the resident memory of each process of the tree by its name, in MB; what they share counts in each."""
    sizes: dict[str, float] = {}
    for pid in _tree(root):
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            sizes[_name(pid)] = sizes.get(_name(pid), 0.0) + pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return sizes


def _tree(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(parents.get(pid, ()))
    return found


def _name(pid: int) -> str:
    """Name a process by the module that Python runs, else by its program."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return words[words.index("-m") + 1] if "-m" in words else words[0].rpartition("/")[2]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
