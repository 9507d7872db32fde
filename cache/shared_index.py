"""The index in memory and the rows in Redis kept as one: loaded at start, followed while running."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache.building import Builder
from cache.index import Row
from cache.partitions import Partitions
from cache.snapshot import Snapshot, read_snapshot, write_snapshot
from cache.store import StoreDown
from cache.vector_store import Added, Change, ChangesLost, Removed, VectorStore
from orchestration.core import Candidate

logger = logging.getLogger(__name__)

_MAX_UNSAVED = 10_000
_MAX_SNAPSHOT_ROWS = 50_000  # a million took 17 s to read, and a start without one takes 2
_ROWS_PER_TURN = 500  # of the event loop
_PARTITIONS_PER_TURN = 100


class SharedIndex:
    """Search in memory, keep in Redis. Without Redis searches go on, and rows added meanwhile are saved later.

    Of those at most 10,000 are kept for later, the oldest are given up first. `snapshot` is a file that a graceful
    end writes and the next start reads, as long as Redis still holds the change that it was written after; one of over
    `max_snapshot_rows` rows is not written, since a start without it is the sooner.
    """

    def __init__(
        self,
        partitions: Partitions,
        vectors: VectorStore,
        *,
        snapshot: Path | None = None,
        clock: Callable[[], float] = time.time,
        retry_s: float = 1.0,
        sweep_s: float = 60.0,
        build_s: float = 1.0,
        max_snapshot_rows: int = _MAX_SNAPSHOT_ROWS,
    ) -> None:
        self.is_down = False
        self._partitions = partitions
        self._vectors = vectors
        self._builder = Builder(partitions, interval_s=build_s)
        self._snapshot = snapshot
        self._max_snapshot_rows = max_snapshot_rows
        self._followed_to: str | None = None
        self._clock = clock
        self._retry_s = retry_s
        self._sweep_s = sweep_s
        self._unsaved: OrderedDict[str, tuple[str, Row]] = OrderedDict()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._loading_all: asyncio.Task[None] | None = None
        self._missed_while_loading: dict[str, list[Change]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def generation(self) -> int:
        """Count the changes of the index since the start."""
        return self._partitions.generation

    @property
    def num_rows(self) -> int:
        """Count the rows in memory."""
        return self._partitions.num_rows

    @property
    def num_unsaved(self) -> int:
        """Count the rows that are in memory alone, because Redis was down."""
        return len(self._unsaved)

    def numbers(self) -> Mapping[str, int]:
        """Return what is counted."""
        return {
            "rows": self.num_rows,
            "partitions": len(self._partitions),
            "approximate": self._partitions.num_approximate,
            "generation": self.generation,
            "unsaved": self.num_unsaved,
            "store_down": int(self.is_down),
        }

    async def start(self) -> None:
        """Begin to follow Redis; without it, begin empty and try again later.

        What the snapshot holds is in memory at once. Without one each partition is read when it is asked for, and
        the others in passing, so that a start takes as long with a million rows as with none.
        """
        try:
            self._followed_to = await self._load_snapshot()
            if self._followed_to is None:
                self._followed_to = await self._vectors.latest_change()
                self._loading_all = asyncio.create_task(self._load_in_passing(), name="index-load-all")
        except StoreDown as exc:
            self._note_down(exc)
        self._builder.start()
        self._tasks = [
            asyncio.create_task(self._follow(), name="index-follow"),
            asyncio.create_task(self._sweep(), name="index-sweep"),
        ]

    async def aclose(self) -> None:
        """Stop following, write the snapshot and close the vector store; what could not be saved is lost."""
        passing = [self._loading_all] if self._loading_all is not None else []
        await _end({*self._tasks, *passing, *self._loading.values()})
        await self._builder.aclose()
        await self._write_snapshot()
        await self._vectors.aclose()

    def is_ready(self, partition: str) -> bool:
        """Tell whether the partition is in memory, or cannot be read."""
        return partition in self._partitions or self.is_down

    async def ready(self, partition: str) -> None:
        """Have the partition in memory, read from Redis where it was not; without Redis as it is."""
        if self.is_ready(partition):
            return
        loading = self._loading.get(partition)
        if loading is None:
            loading = asyncio.create_task(self._load(partition), name="index-load")
            self._loading[partition] = loading
        await asyncio.shield(loading)  # others wait for it too

    async def search(self, partition: str, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        """Return the nearest entries in memory; `ready` has been awaited. Raises `NotBuiltYet`."""
        return self._partitions.search(partition, vector, top_k)

    async def add(self, partition: str, row: Row) -> bool:
        """Add a row, once per entry; tells whether Redis has it too."""
        await self.ready(partition)
        self._partitions.add(partition, row)
        try:
            if self.is_down:
                raise StoreDown("the vector store was down a moment ago")
            await self._vectors.save(partition, row, ttl_s=row.expires_at - self._clock())
        except StoreDown as exc:
            self._note_down(exc)
            self._keep_unsaved(partition, row)
            return False
        return True

    async def remove_rows(self, rows: Sequence[tuple[str, str]]) -> int:
        """Take (partition, entry) rows out, of Redis too where they are not in memory; returns how many were in memory.

        Raises `StoreDown`; then the rows are out of memory alone, and asking again does the rest.
        """
        by_partition: dict[str, list[str]] = {}
        for partition, entry in rows:
            by_partition.setdefault(partition, []).append(entry)
            self._unsaved.pop(entry, None)
            if partition in self._missed_while_loading:  # it may have been read already, and not be in memory yet
                self._missed_while_loading[partition].append(Removed(partition, entry))
        count = sum(self._partitions.remove(partition, entry) for partition, entry in rows)
        for partition, entries in by_partition.items():
            await self._vectors.remove(partition, entries)
        return count

    async def _load(self, partition: str) -> None:
        missed = self._missed_while_loading.setdefault(partition, [])
        try:
            await self._take_in(partition, await self._vectors.load(partition))
        except StoreDown as exc:
            self._note_down(exc)
            return
        finally:
            self._loading.pop(partition, None)
            self._missed_while_loading.pop(partition, None)
        for change in missed:
            self._apply(change)

    async def _take_in(self, partition: str, rows: Iterable[Row]) -> None:
        """Have the partition in memory with these rows, at once, though others are served meanwhile."""
        now = self._clock()
        index = self._partitions.new_index()
        living = (row for row in rows if row.expires_at > now)
        while some := list(itertools.islice(living, _ROWS_PER_TURN)):
            index.extend(some)
            if len(some) == _ROWS_PER_TURN:
                await asyncio.sleep(0)
        self._partitions.put(partition, index)

    async def _load_in_passing(self) -> None:
        """Read the partitions that nobody has asked for, as many as there is room for."""
        try:
            async with aclosing(self._vectors.partitions()) as names:
                async for partition in names:
                    if self._partitions.is_full:
                        break
                    await self.ready(partition)
        except StoreDown as exc:
            self._note_down(exc)
        else:
            logger.info("index.loaded rows=%d", self.num_rows)

    async def _load_all(self) -> str:
        """Read as many partitions as there is room for; returns the change to follow from, taken before reading."""
        after = await self._vectors.latest_change()
        await self._save_unsaved()
        self._partitions.clear()
        async with aclosing(self._vectors.partitions()) as names:
            async for partition in names:
                if self._partitions.is_full:
                    break  # the rest is read when it is asked for
                await self._take_in(partition, await self._vectors.load(partition))
        self.is_down = False
        return after

    async def _load_snapshot(self) -> str | None:
        """Take in the snapshot where Redis can tell what came after it; returns the change to follow from."""
        if self._snapshot is None:
            return None
        kept = await asyncio.to_thread(read_snapshot, self._snapshot, revision=self._vectors.revision)
        if kept is None or not await self._vectors.holds_change(kept.change_id):
            return None
        for partition, rows in kept.partitions:
            await self._take_in(partition, rows)
        return kept.change_id

    async def _write_snapshot(self) -> None:
        if self._snapshot is None or self._followed_to is None or self.is_down:
            return
        if self.num_rows > self._max_snapshot_rows:
            await asyncio.to_thread(self._snapshot.unlink, missing_ok=True)
            return
        kept = Snapshot(self._followed_to, tuple((name, tuple(rows)) for name, rows in self._partitions.whole()))
        try:
            await asyncio.to_thread(write_snapshot, self._snapshot, kept, revision=self._vectors.revision)
        except OSError as exc:
            logger.warning("index.snapshot_not_written: %s", exc)

    async def _follow(self) -> None:
        while True:
            try:
                if self._followed_to is None or self.is_down:
                    self._followed_to = await self._load_all()
                    logger.info("index.loaded rows=%d", self.num_rows)
                change_id, changes = await self._vectors.changes_after(self._followed_to, wait_s=1.0)
                for change in changes:
                    self._apply(change)
                self._followed_to = change_id
            except ChangesLost as exc:
                logger.warning("index.changes_lost: %s", exc)
                self._followed_to = None
            except StoreDown as exc:
                self._note_down(exc)
                await asyncio.sleep(self._retry_s)

    def _apply(self, change: Change) -> None:
        if change.partition in self._missed_while_loading:
            self._missed_while_loading[change.partition].append(change)
        if change.partition not in self._partitions:
            return  # it will be read whole when it is asked for
        match change:
            case Added(partition, row):
                self._partitions.add(partition, row)
            case Removed(partition, entry):
                self._partitions.remove(partition, entry)

    async def _save_unsaved(self) -> None:
        while self._unsaved:
            entry, (partition, row) = next(iter(self._unsaved.items()))
            if row.expires_at > self._clock():
                await self._vectors.save(partition, row, ttl_s=row.expires_at - self._clock())
            self._unsaved.pop(entry, None)

    def _keep_unsaved(self, partition: str, row: Row) -> None:
        self._unsaved[row.entry] = (partition, row)
        if len(self._unsaved) > _MAX_UNSAVED:
            self._unsaved.popitem(last=False)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            names = iter(self._partitions.names())
            while some := list(itertools.islice(names, _PARTITIONS_PER_TURN)):
                for partition, entries in self._partitions.sweep(some).items():
                    try:
                        await self._vectors.remove(partition, entries, is_told=False)
                    except StoreDown as exc:
                        self._note_down(exc)
                await asyncio.sleep(0)

    def _note_down(self, exc: StoreDown) -> None:
        if not self.is_down:
            logger.warning("index.store_down: %s", exc)
        self.is_down = True


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks until they end: before Python 3.12 `asyncio.wait_for`, by which the client library sends a
    command, loses a cancellation that comes in the same moment.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=0.1)
