"""The writing end of a worker's segments: one open file at a time, closed by size and by age."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from logging_layer import segment


class SegmentWriter:
    """Write lines to a segment, opened at the first write and after each close. Used by one thread.

    Every method but `abandon` raises `OSError` as the disk does; what was written since the last `sync` must then
    be written again, after `abandon`.
    """

    def __init__(self, folder: Path, *, worker: str, max_bytes: int, max_age_s: float) -> None:
        self._folder = folder
        self._worker = worker
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._descriptor: int | None = None
        self._opened_at = 0.0
        self._size_bytes = 0  # of what was written whole
        self._synced_bytes = 0

    @property
    def seconds_to_end(self) -> float | None:
        """Tell when the open segment is to be closed for its age; None where none is open."""
        if self._descriptor is None:
            return None
        return max(self._opened_at + self._max_age_s - time.monotonic(), 0.0)

    def write(self, data: bytes) -> None:
        """Write whole lines; other processes may read them at once."""
        if self._descriptor is None:
            _, self._descriptor = segment.create(self._folder, worker=self._worker)
            self._opened_at = time.monotonic()
            self._size_bytes = self._synced_bytes = 0
        written = os.write(self._descriptor, data)
        while written < len(data):  # a disk that fills up takes a part, and refuses the next
            written += os.write(self._descriptor, data[written:])
        self._size_bytes += written

    def sync(self) -> None:
        """Make everything written durable, and close the segment where it is large or old enough."""
        if self._descriptor is None:
            return
        os.fsync(self._descriptor)
        self._synced_bytes = self._size_bytes
        if self._size_bytes >= self._max_bytes or self.seconds_to_end == 0.0:
            self.close()

    def close(self) -> None:
        """Let go of the segment: from now on it may be shipped and deleted."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def end(self) -> None:
        """Cut off what a write that failed has left, make what was written before it durable, and close the segment."""
        if self._descriptor is None:
            return
        os.ftruncate(self._descriptor, self._size_bytes)
        os.fsync(self._descriptor)
        self.close()

    def abandon(self) -> None:
        """Cut off what is not durable, as far as the disk lets us, and go on in a new segment."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):  # what stays is a torn line or a double, and readers know both
            os.ftruncate(self._descriptor, self._synced_bytes)
        with contextlib.suppress(OSError):
            self.close()
