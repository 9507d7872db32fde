"""What one request holds of the pool and the tree, and the only way to take, share and free pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backends.engine.kv.pool import PagePool
from backends.engine.kv.radix import Match, Node, RadixTree


@dataclass(slots=True, eq=False)
class Holding:
    """The pages of one request in the order of its tokens; the first `num_shared` belong to the tree.

    `node` ends the shared path and is locked; `None` means that the holding is closed.
    """

    node: Node | None
    pages: list[int] = field(default_factory=list)
    num_shared: int = 0


class KvCache:
    """Open, grow, publish and close holdings over one pool and one tree."""

    def __init__(self, *, num_pages: int, page_size: int, prefix_cache: bool) -> None:
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(page_size=page_size)
        self._page_size = page_size
        self._prefix_cache = prefix_cache

    @property
    def num_available(self) -> int:
        """Return how many pages a request could still get, evicting all that nobody uses."""
        return self.pool.num_free + self.tree.num_evictable

    def peek(self, salt: str, tokens: Sequence[int]) -> Match:
        """Return what `open` would find, changing nothing: the longest cached prefix without the last token.

        Its fork is a page whose first tokens are the next ones: their keys and values may be copied to the page that
        `grow` adds. What lies in that page stays true until a step that is decided later writes to it, even if the
        page is evicted by then.
        """
        return self.tree.match(salt, self._known(tokens))

    def fits(self, match: Match, num_tokens: int) -> bool:
        """Tell whether a holding opened on `match` could grow to `num_tokens` tokens now."""
        missing = -(-num_tokens // self._page_size) - match.num_pages
        return missing <= self.num_available - match.num_evictable

    def open(self, salt: str, tokens: Sequence[int]) -> Holding:
        """Return a holding of the longest cached prefix, in whole pages and without the last token.

        The last token is always computed, so that there is a row to sample from.
        """
        node, num_pages = self.tree.find(salt, self._known(tokens))
        self.tree.lock(node)
        pages = [page for step in reversed(list(node.path())) for page in step.pages]
        assert len(pages) == num_pages
        return Holding(node, pages, num_pages)

    def grow(self, holding: Holding, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all; returns False, changing nothing, where pages are short."""
        missing = -(-num_tokens // self._page_size) - len(holding.pages)
        if missing <= 0:
            return True
        assert holding.node is not None
        if missing > self.num_available:
            return False
        self.pool.evict(self.tree.evict(missing - self.pool.num_free))
        holding.pages.extend(self.pool.take(missing))
        return True

    def publish(self, holding: Holding, tokens: Sequence[int], num_computed: int) -> None:
        """Share the full pages of the first `num_computed` tokens; equal pages that are shared already replace ours."""
        num_full = num_computed // self._page_size
        if not self._prefix_cache or num_full <= holding.num_shared:
            return
        assert holding.node is not None
        begin, own = holding.num_shared, holding.pages[holding.num_shared : num_full]
        run = tokens[begin * self._page_size : num_full * self._page_size]
        node, used, spare = self.tree.insert(holding.node, run, own)
        self.tree.lock(node)
        self.tree.unlock(holding.node)
        unneeded = set(spare)
        self.pool.give_back(spare)
        self.pool.cache(page for page in own if page not in unneeded)
        holding.node, holding.num_shared = node, num_full
        holding.pages[begin:num_full] = used

    def close(self, holding: Holding, tokens: Sequence[int], *, num_computed: int) -> None:
        """Free all, leaving the full pages of the first `num_computed` tokens to the tree; again, it does nothing."""
        if holding.node is None:
            return
        self.publish(holding, tokens, num_computed)
        self.tree.unlock(holding.node)
        self.pool.give_back(holding.pages[holding.num_shared :])
        holding.node, holding.pages, holding.num_shared = None, [], 0

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert that pages are parted exactly among the free list, these holdings and the tree."""
        holdings = list(holdings)
        self.tree.check()
        own = (page for holding in holdings for page in holding.pages[holding.num_shared :])
        self.pool.check(held=own, cached=self.tree.pages())
        for holding in holdings:
            assert holding.node is not None
            path = [page for step in reversed(list(holding.node.path())) for page in step.pages]
            assert path == holding.pages[: holding.num_shared]
        num_locks = sum(len(list(holding.node.path())) for holding in holdings if holding.node)
        assert num_locks == sum(node.locks for node in self.tree.nodes()), "a lock without its holder"

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[:-1] if self._prefix_cache else ()
