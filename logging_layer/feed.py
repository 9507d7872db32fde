"""One sink's way through the spool: from where it was, in batches, each acknowledged before it counts."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logging_layer import segment
from logging_layer.codec import decode
from logging_layer.progress import load_progress, save_progress
from logging_layer.sink import Picks, Shipped, Sink, SinkDown, SinkRefused

_logger = logging.getLogger(__name__)
MAX_BATCH_BYTES = 8 * 1024 * 1024
_NEEDED = frozenset({"id", "outcome", "cache", "received_at", "duration_ms"})

Choice = Callable[[Mapping[str, Any], int], float]
"""Say how many calls a record stands for, given how many bytes of the spool wait for the sink; 0: it is left out."""


@dataclass(slots=True)
class FeedCounts:
    """What a feed saw since this process began; `lost_*` is what workers wrote that they had lost."""

    shipped: int = 0
    left_out: int = 0
    refused: int = 0
    torn: int = 0
    lost_records: int = 0
    lost_contents: int = 0


@dataclass(slots=True)
class _Batch:
    offsets: dict[str, int]
    records: list[Shipped] = field(default_factory=list)
    left_out: int = 0
    torn: int = 0
    lost_records: int = 0
    lost_contents: int = 0
    size_bytes: int = 0
    oldest_at: float = math.inf

    @property
    def oldest_s(self) -> float:
        """Age of the oldest record since its call ended."""
        return time.time() - self.oldest_at if self.records else 0.0


class Feed:
    """Bring every record of the spool to one sink, at least once; progress is durable after each batch, or, while the
    spool's disk is full, known to this process alone: what is shipped goes then all the same, and makes room.

    A batch goes out when it is full, when its oldest record is `linger_s` old, or at the end; one that is neither is
    looked at again when it is due. After one that was not full nothing is looked for during `rest_s`, and while nothing
    comes the looks, from `poll_s` on, become as rare. While the sink is down the feed waits, up to `max_wait_s` between
    tries. What a sink refuses alone is put into `refused.<sink>`.
    """

    def __init__(
        self,
        folder: Path,
        sink: Sink,
        *,
        choose: Choice = lambda _record, _backlog_bytes: 1.0,
        linger_s: float = 0.0,
        poll_s: float = 0.1,
        rest_s: float = 0.8,
        max_wait_s: float = 15.0,
    ) -> None:
        self._folder = folder
        self._sink = sink
        self._pick = sink.pick if isinstance(sink, Picks) else _nothing
        self._choose = choose
        self._linger_s = linger_s
        self._poll_s = poll_s
        self._rest_s = rest_s
        self._max_wait_s = max_wait_s
        self._was_full = False
        self._due_in_s = 0.0
        self._offsets = load_progress(folder, sink.name)
        self.counts = FeedCounts()
        self.problem: str | None = None
        self.lag_s = 0.0

    @property
    def name(self) -> str:
        """Name the sink."""
        return self._sink.name

    def has_all(self, path: Path) -> bool:
        """Tell whether the sink has everything of a segment that nobody writes to any more."""
        return self._offsets.get(path.name, 0) >= segment.size_of(path)

    def backlog_bytes(self) -> int:
        """Count the bytes of the spool that wait for the sink."""
        return self._waiting_bytes(segment.list_segments(self._folder))

    async def run(self, stopping: asyncio.Event) -> None:
        """Feed the sink until `stopping`, then bring it what is there, unless it is down."""
        wait_s = self._poll_s
        while True:
            is_last = stopping.is_set()
            try:
                has_moved = await self.step(is_last=is_last)
                self.problem = None
                wait_s = self._poll_s if has_moved else min(wait_s * 2, max(self._poll_s, self._rest_s))
            except (SinkDown, OSError) as exc:
                if str(exc) != self.problem:
                    _logger.warning("feed.waits sink=%s: %s", self.name, exc)
                self.problem, has_moved = str(exc), False
                wait_s = min(max(wait_s, 0.25) * 2, self._max_wait_s)
            if is_last and not has_moved:
                return
            if not has_moved:
                await pause(stopping, max(wait_s, self._due_in_s))
            elif not self._was_full and not is_last:
                await pause(stopping, self._rest_s)  # a batch of a few costs nearly as much as one of hundreds

    async def step(self, *, is_last: bool = False) -> bool:
        """Ship one batch; False where there is none, or none that is due. Raises `SinkDown` and `OSError`."""
        self._due_in_s = 0.0
        if not self.backlog_bytes():  # a few names and sizes, for a tenth of what it takes to wake a thread
            self.lag_s = 0.0
            return False
        batch = await asyncio.to_thread(self._read)
        self.lag_s = batch.oldest_s
        is_full = len(batch.records) >= self._sink.max_records or batch.size_bytes >= MAX_BATCH_BYTES
        if batch.records and not is_full and not is_last:
            self._due_in_s = min(max(self._linger_s - batch.oldest_s, 0.0), self._linger_s)
        if batch.offsets == self._offsets or self._due_in_s:
            return False
        self._was_full = is_full
        refused = await self._send(batch.records)
        await asyncio.to_thread(self._settle, batch, refused)
        return True

    async def aclose(self) -> None:
        """Close the sink."""
        await self._sink.aclose()

    def _waiting_bytes(self, paths: Sequence[Path]) -> int:
        return sum(max(segment.size_of(path) - self._offsets.get(path.name, 0), 0) for path in paths)

    def _read(self) -> _Batch:
        """Read the next batch from all segments, each from where the sink has come to."""
        paths = segment.list_segments(self._folder)
        backlog_bytes = self._waiting_bytes(paths)
        known = {path.name for path in paths}
        batch = _Batch({name: offset for name, offset in self._offsets.items() if name in known})
        for path in paths:
            if len(batch.records) >= self._sink.max_records or batch.size_bytes >= MAX_BATCH_BYTES:
                break
            self._read_segment(path, batch, backlog_bytes)
        return batch

    def _read_segment(self, path: Path, batch: _Batch, backlog_bytes: int) -> None:
        offset = batch.offsets.get(path.name, 0)
        if segment.size_of(path) <= offset:
            return
        is_finished = segment.is_finished(path)  # asked before reading: what is not whole afterwards never will be
        for line in segment.read_lines(path, start=offset):
            batch.size_bytes += line.end - offset
            offset = batch.offsets[path.name] = line.end
            self._take(line.data, batch, backlog_bytes)
            if len(batch.records) >= self._sink.max_records or batch.size_bytes >= MAX_BATCH_BYTES:
                return
        if is_finished and segment.size_of(path) > offset:
            batch.torn += 1
            batch.offsets[path.name] = segment.size_of(path)

    def _take(self, data: bytes | None, batch: _Batch, backlog_bytes: int) -> None:
        record = _parsed(data)
        if data is None or record is None:
            batch.torn += 1
        elif "lost" in record:
            batch.lost_records += record["lost"]["records"]
            batch.lost_contents += record["lost"]["contents"]
        elif weight := self._choose(record, backlog_bytes):
            batch.records.append(Shipped(data, weight, self._picked(data, record)))
            batch.oldest_at = min(batch.oldest_at, record["received_at"] + record["duration_ms"] / 1000.0)
        else:
            batch.left_out += 1

    def _picked(self, data: bytes, record: Mapping[str, Any]) -> Any:
        try:
            return self._pick(data, record)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None  # the sink meets it again, and refuses it

    async def _send(self, records: Sequence[Shipped]) -> list[Shipped]:
        """Send a batch, one by one where it is refused whole; returns what was refused alone."""
        if not records:
            return []
        try:
            await self._sink.send(records)
            return []
        except SinkRefused as exc:
            _logger.error("feed.refused sink=%s records=%d: %s", self.name, len(records), exc)
            if len(records) == 1:
                return list(records)
        half = len(records) // 2
        return await self._send(records[:half]) + await self._send(records[half:])

    def _settle(self, batch: _Batch, refused: Sequence[Shipped]) -> None:
        """Put aside what was refused, and note how far the sink is."""
        if refused:
            with (self._folder / f"refused.{self.name}").open("ab") as file:
                file.writelines(each.data + b"\n" for each in refused)
        self._offsets = batch.offsets  # what is shipped may be deleted, also where no progress can be written any more
        self._count(batch, refused)
        save_progress(self._folder, self.name, batch.offsets)

    def _count(self, batch: _Batch, refused: Sequence[Shipped]) -> None:
        self.counts.shipped += len(batch.records) - len(refused)
        self.counts.refused += len(refused)
        self.counts.left_out += batch.left_out
        self.counts.torn += batch.torn
        self.counts.lost_records += batch.lost_records
        self.counts.lost_contents += batch.lost_contents


def _nothing(_data: bytes, _record: Mapping[str, Any]) -> None:
    return None


def _parsed(data: bytes | None) -> Mapping[str, Any] | None:
    """Read a line's JSON; None where it is neither a record nor a note of losses."""
    try:
        value = decode(data or b"")
    except ValueError:
        return None
    is_ours = isinstance(value, dict) and ("lost" in value or value.keys() >= _NEEDED)
    return value if is_ours else None


async def pause(stopping: asyncio.Event, timeout_s: float) -> None:
    """Wait for so long, or until `stopping`."""
    try:
        async with asyncio.timeout(timeout_s):
            await stopping.wait()
    except TimeoutError:
        return
