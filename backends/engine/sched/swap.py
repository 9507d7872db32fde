"""Which pages of the swap space keep the keys and values of requests that gave way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backends.engine.kv.cache import Holding
from backends.engine.kv.radix import Match
from backends.engine.sched.decision import Move


@dataclass(frozen=True, slots=True)
class Saved:
    """What is kept of a request: its pages from the `first` on, which hold its tokens up to `num_tokens`."""

    first: int
    num_tokens: int
    pages: tuple[int, ...]


class SwapSpace:
    """Give out the pages of a second store, bounded: a request that finds too few is not saved and computes again.

    A save counts from the moment it is asked for: it is part of the next decision, which moves pages before any of
    them is written to.
    """

    def __init__(self, num_pages: int, *, page_size: int) -> None:
        self._num_pages = num_pages
        self._page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._saved: dict[int, Saved] = {}
        self._due: dict[int, tuple[Move, ...]] = {}

    @property
    def num_used(self) -> int:
        """Return how many pages are in use."""
        return self._num_pages - len(self._free)

    def save(self, key: int, holding: Holding, num_tokens: int) -> int:
        """Keep what a request has computed, but for pages that others use as well; returns how many pages that takes.

        What was kept of it before is given up.
        """
        self.forget(key)
        assert holding.node is not None
        first = 0
        for node in reversed(list(holding.node.path())):
            if node.locks > 1:
                first += len(node.pages)
        pages = holding.pages[first : -(-num_tokens // self._page_size)]
        if not pages or len(pages) > len(self._free):
            return 0
        kept = tuple(self._free.pop() for _ in pages)
        self._saved[key] = Saved(first, num_tokens, kept)
        self._due[key] = tuple(map(Move, pages, kept))
        return len(pages)

    def num_tokens(self, key: int, match: Match) -> int:
        """Return how many tokens a request would have that starts with what matched and with what is kept of it."""
        saved = self._saved.get(key)
        return 0 if saved is None or saved.first > match.num_pages else saved.num_tokens

    def loads(self, key: int, pages: Sequence[int], *, num_matched: int) -> tuple[Move, ...]:
        """Return the moves that bring back what is kept to a request's pages, but for the first ones, which matched."""
        saved = self._saved[key]
        kept = saved.pages[num_matched - saved.first :]
        return tuple(map(Move, kept, pages[num_matched : num_matched + len(kept)]))

    def drain(self) -> tuple[Move, ...]:
        """Return the saves that are due, once."""
        moves = tuple(move for due in self._due.values() for move in due)
        self._due.clear()
        return moves

    def forget(self, key: int) -> None:
        """Free what is kept of a request, if anything is."""
        saved = self._saved.pop(key, None)
        if saved is not None:
            self._due.pop(key, None)
            self._free.extend(saved.pages)

    def lose(self, saves: Iterable[Move]) -> None:
        """Free what these saves were to keep."""
        targets = {move.target for move in saves}
        for key in [key for key, saved in self._saved.items() if not targets.isdisjoint(saved.pages)]:
            self.forget(key)

    def check(self, waiting: Iterable[int]) -> None:
        """Assert that every page is free or kept for one of those that wait, and never both."""
        used = [page for saved in self._saved.values() for page in saved.pages]
        assert sorted(used + self._free) == list(range(self._num_pages))
        assert self._saved.keys() <= set(waiting)
        assert self._due.keys() <= self._saved.keys()
