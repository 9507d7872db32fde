"""One worker's part in keeping entries in order: it hears of invalidations, tells of hits, and has rows taken out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from cache.catalogue import Catalogue
from cache.script import Row
from cache.semantic import IndexFault
from cache.store import StoreDown

POLL_S = 0.4
_SWEEP_EVERY = 5
_MAX_HITS = 10_000
_MAX_ROWS = 10_000
_ROWS_AT_ONCE = 500
_CLOSE_S = 1.0

logger = logging.getLogger(__name__)


class RowIndex(Protocol):
    """Where rows are taken out of; raises `IndexFault`."""

    async def remove_rows(self, rows: Sequence[Row]) -> int:
        """Take entries out of their partitions, here and at all other nodes; returns how many were here."""
        ...


class CatalogueWatch:
    """A `Ledger` kept up to date by a task that asks every `poll_s`.

    `on_cut` is called when something was invalidated, here or elsewhere. Hits of at most 10,000 entries wait to be
    told, more are not counted; of rows to take out at most 10,000 wait, the oldest are given up: a row without a
    value is never served, and is found again when it is a candidate. While the store is down everything waits.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        index: RowIndex | None,
        *,
        rows_out: deque[Row] | None = None,
        on_cut: Callable[[], None] = lambda: None,
        poll_s: float = POLL_S,
    ) -> None:
        self.on_cut = on_cut
        self._catalogue = catalogue
        self._index = index
        self._rows = rows_out if rows_out is not None else deque[Row](maxlen=_MAX_ROWS)
        self._poll_s = poll_s
        self._epoch = 0
        self._hits: dict[str, int] = {}
        self._num_turns = 0
        self._task: asyncio.Task[None] | None = None
        self._is_closing = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Number the latest invalidation that is known here."""
        return self._epoch

    def hit(self, key: str) -> None:
        """Count a hit."""
        if key in self._hits or len(self._hits) < _MAX_HITS:
            self._hits[key] = self._hits.get(key, 0) + 1

    def is_gone(self, partition: str, entry: str) -> None:
        """Have the row taken out soon."""
        self._rows.append((partition, entry))

    async def start(self) -> None:
        """Learn what was invalidated so far, and begin to follow; without a store, later."""
        try:
            self._epoch = await self._catalogue.count_hits({})
        except StoreDown as exc:
            logger.warning("catalogue.down: %s", exc)
        self._task = asyncio.create_task(self._follow(), name="catalogue-watch")

    async def aclose(self) -> None:
        """Tell what there is to tell, and stop."""
        self._is_closing.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=_CLOSE_S)
            for task in late:
                task.cancel()

    async def remove_rows(self, rows: Sequence[Row]) -> None:
        """Take rows out now where the index answers, else later; what was invalidated with them is heard at once."""
        self._rows.extend(rows)
        try:
            await self.turn()
        except (StoreDown, IndexFault) as exc:
            logger.warning("catalogue.rows_wait: %s", exc)

    async def turn(self) -> None:
        """Exchange news once; what could not be told is told the next time."""
        hits, self._hits = self._hits, {}
        try:
            epoch = await self._catalogue.count_hits(hits)
            if self._num_turns % _SWEEP_EVERY == 0:
                self._rows.extend(await self._catalogue.sweep())
            self._num_turns += 1
        except StoreDown:
            for key, count in hits.items():
                self._hits[key] = self._hits.get(key, 0) + count
            raise
        if epoch != self._epoch:
            self._epoch = epoch
            self.on_cut()
        await self._take_rows_out()

    async def _follow(self) -> None:
        is_down = False
        while True:
            is_last = self._is_closing.is_set()
            try:
                await self.turn()
                is_down = False
            except (StoreDown, IndexFault) as exc:
                if not is_down:
                    logger.warning("catalogue.down: %s", exc)
                is_down = True
            if is_last:
                return
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._is_closing.wait()
            except TimeoutError:
                pass

    async def _take_rows_out(self) -> None:
        if self._index is None:
            self._rows.clear()
        while self._index is not None and self._rows:
            rows = [self._rows.popleft() for _ in range(min(_ROWS_AT_ONCE, len(self._rows)))]
            try:
                # A question that was asked anew meanwhile has its answer again.
                await self._index.remove_rows(await self._catalogue.without_value(rows))
            except (IndexFault, StoreDown):
                self._rows.extendleft(reversed(rows))
                raise
