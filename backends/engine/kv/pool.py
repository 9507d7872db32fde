"""The page pool: every page is free, held by one request, or cached in the tree; never two of these."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class PageState(IntEnum):
    """Who has a page."""

    FREE = 0
    HELD = 1
    CACHED = 2


class PagePool:
    """Hand out pages and take them back; a move from a wrong state is our own fault and asserts."""

    def __init__(self, num_pages: int) -> None:
        self._states = bytearray(num_pages)
        self._free = list(range(num_pages - 1, -1, -1))
        self._num_cached = 0

    @property
    def num_pages(self) -> int:
        """Return how many pages there are."""
        return len(self._states)

    @property
    def num_free(self) -> int:
        """Return how many pages nobody has."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Return how many pages belong to the tree."""
        return self._num_cached

    def take(self, count: int) -> list[int]:
        """Return `count` free pages, held from now on; the caller made sure that there are so many."""
        assert 0 <= count <= len(self._free)
        pages = [self._free.pop() for _ in range(count)]
        self._move(pages, PageState.FREE, PageState.HELD)
        return pages

    def give_back(self, pages: Iterable[int]) -> None:
        """Free pages that were held."""
        pages = list(pages)
        self._move(pages, PageState.HELD, PageState.FREE)
        self._free.extend(reversed(pages))

    def cache(self, pages: Iterable[int]) -> None:
        """Pass pages that were held on to the tree."""
        pages = list(pages)
        self._move(pages, PageState.HELD, PageState.CACHED)
        self._num_cached += len(pages)

    def evict(self, pages: Iterable[int]) -> None:
        """Free pages that the tree gave up."""
        pages = list(pages)
        self._move(pages, PageState.CACHED, PageState.FREE)
        self._num_cached -= len(pages)
        self._free.extend(reversed(pages))

    def check(self, *, held: Iterable[int], cached: Iterable[int]) -> None:
        """Assert that free, held and cached pages part the pool exactly, as the owners count them."""
        expected = bytearray(len(self._states))
        for state, pages in ((PageState.HELD, held), (PageState.CACHED, cached)):
            for page in pages:
                assert expected[page] == PageState.FREE, f"page {page} has two owners"
                expected[page] = state
        assert expected == self._states, "an owner's count differs from the pool's"
        free = [page for page, state in enumerate(self._states) if state == PageState.FREE]
        assert sorted(self._free) == free, "the free list differs from the states"
        assert self._num_cached == self._states.count(PageState.CACHED)

    def _move(self, pages: list[int], before: PageState, after: PageState) -> None:
        for page in pages:
            assert self._states[page] == before, f"page {page} is {PageState(self._states[page]).name}"
            self._states[page] = after
