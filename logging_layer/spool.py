"""The truth: records on this machine's disk, durable within about 100 ms, whatever becomes of everything else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from logging_layer import segment
from logging_layer.codec import encode
from logging_layer.record import CallRecord, Outcome
from logging_layer.segment_writer import SegmentWriter

_logger = logging.getLogger(__name__)
_WRITE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Where the spool's bounds are.

    With more than half of `max_queue_bytes` waiting for the disk (three quarters: of failed and blocked calls), records
    come in without their content; beyond the whole of it they are lost. Both are counted. A segment is closed at
    `max_segment_bytes` or after `max_segment_age_s`.
    """

    max_queue_bytes: int = 64 * 1024 * 1024
    max_segment_bytes: int = 16 * 1024 * 1024
    max_segment_age_s: float = 300.0
    linger_s: float = 0.02
    sync_every_s: float = 0.05
    retry_s: float = 0.5
    close_timeout_s: float = 10.0
    loss_shown_s: float = 60.0


@dataclass(slots=True)
class SpoolCounts:
    """What the spool took, made durable, and lost."""

    appended: int = 0
    synced: int = 0
    lost: int = 0
    contents_dropped: int = 0


class Spool:
    """Append records to one worker's segments; a thread writes at once and syncs in batches.

    `append` never waits and never raises. A record is acknowledged once it is synced: `kill -9` loses nothing that
    was appended more than a second before, and a crash of the machine nothing that was synced. While the disk
    refuses, calls go on, records wait within the bound, and `check_health` says so.
    """

    def __init__(self, folder: Path, *, worker: str, limits: SpoolLimits | None = None) -> None:
        self._folder = folder
        self._worker = worker
        self._limits = limits or SpoolLimits()
        self._waiting: deque[bytes] = deque()
        self._unsynced: list[bytes] = []
        self._held_bytes = 0
        self._counts = SpoolCounts()
        self._lost_at = 0.0
        self._told = (0, 0)
        self._problem: str | None = None
        self._is_closing = False
        self._is_idle = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._writer = SegmentWriter(
            folder, worker=worker, max_bytes=self._limits.max_segment_bytes, max_age_s=self._limits.max_segment_age_s
        )

    async def start(self) -> None:
        """Create the folder and begin to write; raises `OSError` where the folder cannot be."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._thread.start()

    def append(self, record: CallRecord) -> None:
        """Take a record; it is durable within about 100 ms."""
        data = self._written(record)
        with self._changed:
            is_bare = self._is_full(len(data), share=_share_of(record)) and record.content.request is not None
            if is_bare:
                data = record.without_content("the spool is behind").to_json()
            if not data or self._is_closing or self._is_full(len(data), share=1.0):
                self._counts.lost += 1
                self._lost_at = time.monotonic()
                return
            self._counts.contents_dropped += is_bare
            self._counts.appended += 1
            self._put(segment.line_of(data))

    async def flush(self, *, timeout_s: float = 10.0) -> bool:
        """Wait until everything appended so far is durable; False where that took too long."""
        return await asyncio.to_thread(self._wait_for_sync, self._counts.appended, timeout_s)

    async def aclose(self) -> None:
        """Make everything durable, then stop; what the disk refuses until the deadline is lost and counted."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, self._limits.close_timeout_s + 1.0)

    async def check_health(self) -> str | None:
        """Say why records are not durable, or that some were lost of late; None where all is well."""
        if self._problem is not None:
            return f"the call log cannot be written: {self._problem}"
        if not self._thread.is_alive():
            return "the call log's writer does not run"
        is_recent = time.monotonic() - self._lost_at < self._limits.loss_shown_s
        return f"{self._counts.lost} call records were lost" if self._counts.lost and is_recent else None

    def counts(self) -> dict[str, int]:
        """Count what this process appended, made durable and lost."""
        with self._changed:
            return asdict(self._counts)

    def _written(self, record: CallRecord) -> bytes:
        """Give the record's JSON, without its content where that cannot be written; empty where nothing can."""
        try:
            return record.to_json()
        except ValueError as exc:
            _logger.warning("spool.unwritable call=%s: %s", record.id, exc)
        try:
            return record.without_content("not writable").to_json()
        except ValueError:
            return b""

    def _is_full(self, size_bytes: int, *, share: float) -> bool:
        return self._held_bytes + size_bytes > self._limits.max_queue_bytes * share

    def _put(self, line: bytes) -> None:
        self._held_bytes += len(line)
        self._waiting.append(line)
        if self._is_idle:  # else it looks by itself: waking a thread costs more than all the rest
            self._is_idle = False
            self._changed.notify_all()

    def _wait_for_sync(self, count: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._counts.synced >= count, timeout_s)

    # Below: the writer's thread.

    def _run(self) -> None:
        next_sync = 0.0
        while self._wait_for_work(next_sync):
            time.sleep(self._limits.linger_s)  # others join the batch, and the lock stays free meanwhile
            if self._try_write(is_sync_due=time.monotonic() >= next_sync):
                next_sync = time.monotonic() + self._limits.sync_every_s
        deadline = time.monotonic() + self._limits.close_timeout_s
        while not self._try_write(is_sync_due=True) and time.monotonic() < deadline:
            time.sleep(self._limits.retry_s)
        self._give_up()

    def _wait_for_work(self, next_sync: float) -> bool:
        """Wait for lines, for the time to sync, or for the segment's end; False at the end of the spool."""
        due_s = max(next_sync - time.monotonic(), 0.0) if self._unsynced else self._writer.seconds_to_end
        with self._changed:
            self._is_idle = True
            self._changed.wait_for(lambda: self._waiting or self._is_closing, due_s)
            self._is_idle = False
            return not self._is_closing

    def _try_write(self, *, is_sync_due: bool) -> bool:
        """Write what waits and sync it where that is due; True after a sync. A failure is kept, and tried again."""
        try:
            while self._write():
                pass
            if is_sync_due:
                self._writer.sync()
                self._count_synced()
        except OSError as exc:
            self._fail(exc)
            return False
        return is_sync_due

    def _write(self) -> bool:
        """Write some of what waits; True where more does. A disk with little room left takes a part of it, not none."""
        with self._changed:
            if (self._counts.lost, self._counts.contents_dropped) != self._told and not self._problem:
                self._tell_losses()
            lines = self._next_lines()
        if not lines:
            return False
        try:
            self._writer.write(b"".join(lines))
        except OSError:
            with self._changed:
                self._waiting.extendleft(reversed(lines))
            raise
        self._unsynced.extend(lines)
        return bool(self._waiting)

    def _next_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        size_bytes = 0
        while self._waiting and size_bytes < _WRITE_BYTES:
            lines.append(self._waiting.popleft())
            size_bytes += len(lines[-1])
        return lines

    def _count_synced(self) -> None:
        num_records, size_bytes = sum(map(_is_record, self._unsynced)), sum(map(len, self._unsynced))
        with self._changed:
            self._problem = None
            self._counts.synced += num_records
            self._held_bytes -= size_bytes
            self._unsynced.clear()
            self._changed.notify_all()

    def _fail(self, exc: OSError) -> None:
        """Keep what was written whole; put the rest back in front, to be written again in a new segment."""
        _logger.error("spool.failed: %s", exc)
        try:
            self._writer.end()
            self._count_synced()
        except OSError:
            self._writer.abandon()
        with self._changed:
            self._problem = exc.strerror or str(exc)
            self._waiting.extendleft(reversed(self._unsynced))
            self._unsynced.clear()
            self._changed.wait_for(lambda: self._is_closing, self._limits.retry_s)

    def _tell_losses(self) -> None:
        """Write into the spool itself what was lost, so that the shipper's numbers hold it."""
        records, contents = self._counts.lost - self._told[0], self._counts.contents_dropped - self._told[1]
        self._told = (self._counts.lost, self._counts.contents_dropped)
        self._put(segment.line_of(encode({"lost": {"worker": self._worker, "records": records, "contents": contents}})))

    def _give_up(self) -> None:
        with self._changed:
            self._counts.lost += sum(map(_is_record, self._waiting))
        self._writer.close()


def _share_of(record: CallRecord) -> float:
    """Say how full the spool may be before a record comes in without its texts: those of failures stay longest."""
    return 0.75 if record.outcome in (Outcome.ERROR, Outcome.BLOCKED) else 0.5


def _is_record(line: bytes) -> bool:
    return not line.startswith(b'{"lost":', segment.CHECK_LENGTH)
