"""The spool's files: lines of JSON, each under a checksum, in segments that their writer holds a lock on.

A line is the CRC-32 of its JSON in eight hexadecimal digits, a space, the JSON and a newline: what a crash tore
off does not check. A segment's name is `<worker>.<nanoseconds>.seg`, so that one worker's sort by age. The writer
holds an exclusive `flock` from before the name appears until it is done with the file; the kernel lets go of it
when the process dies, so whoever gets the lock knows that nothing more will be written.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".seg"
CHECK_LENGTH = 9
"""How many bytes stand before a line's JSON: eight digits and a space."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that was read: where it ends in its file, and its JSON, or None where it does not check."""

    end: int
    data: bytes | None


def line_of(data: bytes) -> bytes:
    """Write one line."""
    return b"%08x %b\n" % (zlib.crc32(data), data)


def create(folder: Path, *, worker: str) -> tuple[Path, int]:
    """Create an empty segment, locked by this process; returns its path and its descriptor, open for appending."""
    path = folder / f"{worker}.{time.time_ns():020d}{SUFFIX}"
    unfinished = path.with_suffix(".new")
    descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unfinished.rename(path)  # only now may the shipper see it, and find it locked
    sync_folder(folder)
    return path, descriptor


def list_segments(folder: Path) -> list[Path]:
    """List the segments, oldest first within each worker; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(SUFFIX)]


def size_of(path: Path) -> int:
    """Return a segment's size in bytes, 0 where it has been deleted meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def is_finished(path: Path) -> bool:
    """Tell whether nobody writes to a segment any more: its writer closed it, or died."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def read_lines(path: Path, *, start: int = 0) -> Iterator[Line]:
    """Read the whole lines from `start` on.

    A last line without its newline is not given: it is being written, or was torn off by a crash.
    """
    with path.open("rb") as file:
        file.seek(start)
        end = start
        while True:
            line = file.readline()
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield Line(end=end, data=_checked(line))


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checked(line: bytes) -> bytes | None:
    data = line[CHECK_LENGTH:-1]
    try:
        is_whole = int(line[:8], 16) == zlib.crc32(data)
    except ValueError:
        return None
    return data if is_whole else None
