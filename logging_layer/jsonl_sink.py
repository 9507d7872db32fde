"""Records into files of JSON lines, as log collectors read them: a file at a time, the oldest one deleted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from logging_layer.codec import decode
from logging_layer.segment import sync_folder
from logging_layer.sink import Shipped, SinkDown

FILE = "calls.jsonl"
ROTATED = "calls.*.jsonl"
PATTERN = "calls*.jsonl"
_DAY_S = 86_400.0
_TAIL_BYTES = 16 * 1024 * 1024
"""How much of the file is read at the start: more than one batch, and only the last one can come again."""


class JsonlSink:
    """Append each record once to `folder/calls.jsonl`; a full file is renamed, `calls.<nanoseconds>.jsonl`.

    Before a batch that would make it larger than `max_file_bytes`, and on another day (UTC) than its last line's, a
    file is closed; of those `max_files` are kept. With `syncs` a batch is durable before it counts, without it the
    kernel decides. One process writes a folder. A batch that the disk refuses leaves nothing behind.
    """

    name = "jsonl"
    max_records = 500

    def __init__(
        self,
        folder: Path,
        *,
        max_file_bytes: int,
        max_files: int,
        syncs: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._path = folder / FILE
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._syncs = syncs
        self._clock = clock
        self._last: set[str] | None = None

    def pick(self, data: bytes, record: Mapping[str, Any]) -> str:
        """Give a record's id."""
        return str(record["id"])

    async def send(self, records: Sequence[Shipped]) -> None:
        """Append what is not there yet."""
        try:
            await asyncio.to_thread(self._append, records)
        except OSError as exc:
            raise SinkDown(f"{self._path} cannot be written: {exc.strerror or exc}") from exc

    async def aclose(self) -> None:
        """Hold nothing: the file is open while it is written to."""

    def _append(self, records: Sequence[Shipped]) -> None:
        if self._last is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._last = _repaired(self._path)
        ids = [shipped.picked or self.pick(shipped.data, shipped.record) for shipped in records]
        new = [shipped.data for shipped, call in zip(records, ids, strict=True) if call not in self._last]
        lines = b"".join(data + b"\n" for data in new)
        size_bytes = self._path.stat().st_size if self._path.exists() else 0
        if size_bytes and (size_bytes + len(lines) > self._max_file_bytes or self._is_of_another_day()):
            self._rotate()
        self._write(lines)
        self._last = set(ids)

    def _is_of_another_day(self) -> bool:
        return int(self._path.stat().st_mtime // _DAY_S) != int(self._clock() // _DAY_S)

    def _write(self, lines: bytes) -> None:
        descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        size_bytes = os.fstat(descriptor).st_size
        try:
            rest = memoryview(lines)
            while rest:  # a disk that fills up takes a part, and refuses the next
                rest = rest[os.write(descriptor, rest) :]
            if self._syncs:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size_bytes)
            raise
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        self._path.rename(self._folder / f"calls.{time.time_ns():020d}.jsonl")
        for path in sorted(self._folder.glob(ROTATED))[: -self._max_files]:
            path.unlink(missing_ok=True)
        sync_folder(self._folder)


def _repaired(path: Path) -> set[str]:
    """Cut off a line that a crash tore, and return the ids of the last records that are there."""
    if not path.exists():
        return set()
    with path.open("r+b") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        start = file.seek(max(size_bytes - _TAIL_BYTES, 0))
        tail = file.read()
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            file.truncate(start + whole)
    return set(_ids(tail[:whole].splitlines()))


def _ids(lines: Iterable[bytes]) -> Iterable[str]:
    for line in lines:
        try:
            record = decode(line)
        except ValueError:  # the first line of a tail begins anywhere
            continue
        if isinstance(record, dict) and "id" in record:
            yield str(record["id"])
