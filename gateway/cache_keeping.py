"""What the caches keep, for one worker: the store, the catalogue of entries, and what follows invalidations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache.catalogue import Catalogue
from cache.catalogue_watch import CatalogueWatch, RowIndex
from cache.redis_store import RedisStore
from cache.script import Row
from cache.store import Ledger
from cache.worth import Bounds


class CacheKeeping:
    """Both caches' store over one Redis, held to `bounds`; `index` is None where no owner runs."""

    def __init__(self, redis_url: str, *, bounds: Bounds, index: RowIndex | None) -> None:
        self.bounds = bounds
        self.store = RedisStore(redis_url, bounds=bounds)
        self.catalogue = Catalogue(redis_url)
        self._cut_hearers: list[Callable[[], None]] = []
        self._watch = CatalogueWatch(self.catalogue, index, rows_out=self.store.rows_out, on_cut=self._tell)

    @property
    def ledger(self) -> Ledger:
        """Give what the layers ask."""
        return self._watch

    def on_cut(self, hearer: Callable[[], None]) -> None:
        """Have it called whenever something was invalidated, by whichever worker or node."""
        self._cut_hearers.append(hearer)

    async def remove_rows(self, rows: Sequence[Row]) -> None:
        """Have rows without an answer taken out of the index now, or soon where its owner is away.

        One that stays is never served, since its answer is gone, and is taken out when it is met.
        """
        await self._watch.remove_rows(rows)

    async def start(self) -> None:
        """Begin to follow."""
        await self._watch.start()

    async def aclose(self) -> None:
        """Tell the last hits and close the connections."""
        await self._watch.aclose()
        await self.catalogue.aclose()
        await self.store.aclose()

    def _tell(self) -> None:
        for hearer in self._cut_hearers:
            hearer()
