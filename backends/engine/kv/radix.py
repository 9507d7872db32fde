"""The radix tree that finds computed prefixes again: whole pages, compared token by token, one root per salt."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages below its parent; locked while a request uses it, `last_used` counts unlocks.

    `order` has the keys of `children`, sorted: beside where other tokens would stand is what they have most in common
    with.
    """

    tokens: tuple[int, ...]
    pages: list[int]
    parent: Node | None
    salt: str
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)
    locks: int = 0
    last_used: int = 0

    def path(self) -> Iterator[Node]:
        """Walk from this node up to, and without, the root."""
        node: Node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def adopt(self, key: tuple[int, ...], child: Node) -> None:
        """Put a child under the tokens of its first page, in place of one that was there."""
        if key not in self.children:
            bisect.insort(self.order, key)
        self.children[key] = child

    def disown(self, key: tuple[int, ...]) -> None:
        """Take a child out."""
        del self.children[key]
        del self.order[bisect.bisect_left(self.order, key)]


@dataclass(frozen=True, slots=True)
class Match:
    """A known prefix: the nodes on its way and how many pages of each belong to it.

    Of the page after them the first `num_forked` tokens are known too: they are those of `fork_page`.
    """

    steps: tuple[tuple[Node, int], ...]
    fork_page: int = -1
    num_forked: int = 0

    @classmethod
    def of(cls, node: Node) -> Match:
        """Return the prefix that ends with a node."""
        return cls(tuple((step, len(step.pages)) for step in node.path()))

    @property
    def num_pages(self) -> int:
        """Return how many pages the prefix has."""
        return sum(num_pages for _, num_pages in self.steps)

    @property
    def num_evictable(self) -> int:
        """Return how many of these pages nobody uses now."""
        return sum(num_pages for node, num_pages in self.steps if node.locks == 0)


class RadixTree:
    """Keep pages under the tokens they hold; only unlocked leaves are evicted, least recently used first.

    A lock on a node locks every node above it. Splitting a node keeps the object for its lower part, so that whoever
    holds a node still holds the same tokens.
    """

    def __init__(self, *, page_size: int) -> None:
        self._page_size = page_size
        self._roots: dict[str, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []
        self._clock = 0
        self._num_offers = 0
        self._num_nodes = 0
        self._num_evictable = 0

    @property
    def num_evictable(self) -> int:
        """Return how many pages eviction could free now."""
        return self._num_evictable

    @property
    def num_nodes(self) -> int:
        """Return how many nodes there are; a split makes one more."""
        return self._num_nodes

    def match(self, salt: str, tokens: Sequence[int]) -> Match:
        """Return the longest known prefix in whole pages, and what is known of the page after it, changing nothing."""
        steps: list[tuple[Node, int]] = []
        node, done = self._roots.get(salt), 0
        fork = (-1, 0)
        while node is not None:
            rest = tuple(tokens[done : done + self._page_size])
            child = node.children.get(rest)
            if child is None:
                fork = _fork_among(node, rest)
                break
            same = self._pages_in_common(child, tokens, done)
            steps.append((child, same))
            done += same * self._page_size
            if same < len(child.pages):
                begin = same * self._page_size
                key = child.tokens[begin : begin + self._page_size]
                fork = (child.pages[same], _num_common(key, tokens[done : done + self._page_size]))
                break
            node = child
        return Match(tuple(steps), *fork)

    def find(self, salt: str, tokens: Sequence[int]) -> tuple[Node, int]:
        """Return the node that ends the longest known prefix in whole pages, and how many pages that is.

        The answer is not locked. A prefix that ends inside a node splits it.
        """
        match = self.match(salt, tokens)
        if not match.steps:
            return self._root(salt), 0
        node, same = match.steps[-1]
        return node if same == len(node.pages) else self._split(node, same), match.num_pages

    def lock(self, node: Node) -> None:
        """Keep this node and all above it from eviction."""
        self._root_of(node).locks += 1
        for step in node.path():
            if step.locks == 0:
                self._num_evictable -= len(step.pages)
            step.locks += 1

    def unlock(self, node: Node) -> None:
        """Take back one lock, and note the path as used now."""
        self._clock += 1
        root = self._root_of(node)
        for step in node.path():
            assert step.locks > 0, "unlocked more often than locked"
            step.locks -= 1
            step.last_used = self._clock
            if step.locks == 0:
                self._num_evictable += len(step.pages)
                self._offer(step)
        root.locks -= 1
        self._drop_if_empty(root)

    def insert(self, node: Node, tokens: Sequence[int], pages: Sequence[int]) -> tuple[Node, list[int], list[int]]:
        """Put pages below a locked node; returns the end node, the path's pages there, and the pages not needed.

        Where the tree has these tokens already, its own page stands and the one offered is not needed.
        """
        assert len(tokens) == len(pages) * self._page_size
        used: list[int] = []
        done = 0
        while done < len(pages):
            at = done * self._page_size
            child = node.children.get(tuple(tokens[at : at + self._page_size]))
            if child is None:
                node = self._add(node, tuple(tokens[at:]), list(pages[done:]))
                used.extend(pages[done:])
                break
            same = self._pages_in_common(child, tokens, at)
            node = child if same == len(child.pages) else self._split(child, same)
            used.extend(node.pages)
            done += same
        return node, used, [old for old, now in zip(pages, used, strict=True) if old != now]

    def evict(self, count: int) -> list[int]:
        """Give up `count` pages, or as many as can be; the least recently used ends of paths go first."""
        freed: list[int] = []
        while len(freed) < count and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            if node.locks or node.children or node.last_used != last_used or not node.pages:
                continue
            freed.extend(self._cut(node, count - len(freed)))
        return freed

    def pages(self) -> Iterator[int]:
        """Walk over every page in the tree."""
        for node in self.nodes():
            yield from node.pages

    def nodes(self) -> Iterator[Node]:
        """Walk over every node below the roots, parents before children."""
        waiting = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def check(self) -> None:
        """Assert what holds of every node: whole pages, keys that fit, locks that never grow downwards."""
        num_nodes = num_evictable = 0
        for node in self.nodes():
            num_nodes += 1
            num_evictable += len(node.pages) if node.locks == 0 else 0
            assert node.pages
            assert len(node.tokens) == len(node.pages) * self._page_size
            assert node.parent is not None
            assert node.parent.children[node.tokens[: self._page_size]] is node
            assert node.salt == node.parent.salt
            assert node.parent.locks >= node.locks >= 0
            assert node.parent.order == sorted(node.parent.children)
        assert num_nodes == self._num_nodes
        assert num_evictable == self._num_evictable
        assert all(root.children or root.locks for root in self._roots.values())

    def _root(self, salt: str) -> Node:
        return self._roots.setdefault(salt, Node((), [], None, salt))

    def _root_of(self, node: Node) -> Node:
        root = self._roots[node.salt]
        assert node.parent is not None or node is root, "the node was dropped"
        return root

    def _drop_if_empty(self, root: Node) -> None:
        if not root.children and not root.locks:
            self._roots.pop(root.salt, None)

    def _pages_in_common(self, child: Node, tokens: Sequence[int], at: int) -> int:
        size = self._page_size
        for index in range(len(child.pages)):
            begin = index * size
            if child.tokens[begin : begin + size] != tuple(tokens[at + begin : at + begin + size]):
                return index
        return len(child.pages)

    def _split(self, node: Node, num_pages: int) -> Node:
        """Cut a node after `num_pages`; returns the new upper part, locked as often as the lower one."""
        assert 0 < num_pages < len(node.pages)
        parent, cut = node.parent, num_pages * self._page_size
        assert parent is not None
        upper = Node(node.tokens[:cut], node.pages[:num_pages], parent, node.salt)
        upper.locks, upper.last_used = node.locks, node.last_used
        parent.adopt(upper.tokens[: self._page_size], upper)
        node.tokens, node.pages, node.parent = node.tokens[cut:], node.pages[num_pages:], upper
        upper.adopt(node.tokens[: self._page_size], node)
        self._num_nodes += 1
        return upper

    def _add(self, parent: Node, tokens: tuple[int, ...], pages: list[int]) -> Node:
        node = Node(tokens, pages, parent, parent.salt, last_used=self._clock)
        parent.adopt(tokens[: self._page_size], node)
        self._num_nodes += 1
        self._num_evictable += len(pages)
        self._offer(node)
        return node

    def _cut(self, node: Node, count: int) -> list[int]:
        """Take pages off the end of a leaf; a leaf without pages leaves the tree."""
        keep = max(0, len(node.pages) - count)
        freed = node.pages[keep:]
        self._num_evictable -= len(freed)
        parent = node.parent
        assert parent is not None
        if keep == 0:
            parent.disown(node.tokens[: self._page_size])
            self._num_nodes -= 1
            node.pages = []
            if parent.parent is None:
                self._drop_if_empty(parent)
            else:
                self._offer(parent)
        else:
            node.tokens, node.pages = node.tokens[: keep * self._page_size], node.pages[:keep]
            self._offer(node)
        return freed

    def _offer(self, node: Node) -> None:
        """Make a leaf that nobody uses known to eviction."""
        if node.locks or node.children:
            return
        if len(self._leaves) > 2 * self._num_nodes + 64:
            self._leaves = [offer for offer in self._leaves if offer[2].pages and offer[2].last_used == offer[0]]
            heapq.heapify(self._leaves)
        self._num_offers += 1  # never equal, so that nodes are never compared
        heapq.heappush(self._leaves, (node.last_used, self._num_offers, node))


def _fork_among(parent: Node, rest: tuple[int, ...]) -> tuple[int, int]:
    """Return the first page of the child that begins most like `rest`, and how many tokens they share."""
    index = bisect.bisect_left(parent.order, rest)
    best = (-1, 0)
    for key in parent.order[max(0, index - 1) : index + 1]:
        shared = _num_common(key, rest)
        if shared > best[1]:
            best = (parent.children[key].pages[0], shared)
    return best


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
