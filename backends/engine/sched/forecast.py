"""What the running requests will hold, and whether one more fits beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backends.engine.config import EngineConfig
from backends.engine.kv.radix import Match
from backends.engine.sched.admission import Admission, Demand
from backends.engine.sched.request import Request


class Forecast:
    """The demands of the running, each shared page counted once, for whoever keeps it longest.

    It holds for one state of the tree: `add` must follow the admission of a request that split no node.
    """

    def __init__(
        self,
        running: Iterable[Request],
        *,
        config: EngineConfig,
        admission: Admission,
        remaining: Callable[[Request], int],
    ) -> None:
        self._admission = admission
        self._capacity, self._page_size = config.num_slots, config.page_size
        self._remaining = remaining
        self._demands: list[Demand] = []
        self._keepers: dict[int, int] = {}  # the place in _demands of who counts a node's pages, by the node's identity
        for request in running:
            assert request.holding is not None
            assert request.holding.node is not None
            self.add(request, Match.of(request.holding.node))

    def admits(self, request: Request, match: Match) -> bool:
        """Tell whether a request that would start with what matched fits; beside nobody it does, or it was refused."""
        if not self._demands:
            return True
        candidate, relieved = self._place(request, match)
        others = self._demands
        if relieved:
            others = list(others)
            for index, num_pages in relieved.items():
                others[index] = self._relieve(others[index], num_pages)
        return self._admission(others, candidate, self._capacity, self._page_size)

    def add(self, request: Request, match: Match) -> None:
        """Count a request from now on."""
        demand, relieved = self._place(request, match)
        for index, num_pages in relieved.items():
            self._demands[index] = self._relieve(self._demands[index], num_pages)
        for node, _ in match.steps:
            keeper = self._keepers.get(id(node))
            if keeper is None or demand.remaining > self._demands[keeper].remaining:
                self._keepers[id(node)] = len(self._demands)
        self._demands.append(demand)

    def _place(self, request: Request, match: Match) -> tuple[Demand, dict[int, int]]:
        """Return a request's demand, and how many pages it takes over from each of those who counted them so far."""
        remaining = self._remaining(request) - 1  # the last token is never computed
        num_counted, relieved = 0, dict[int, int]()
        for node, num_pages in match.steps:
            keeper = self._keepers.get(id(node))
            if keeper is None:
                continue
            if remaining > self._demands[keeper].remaining:
                relieved[keeper] = relieved.get(keeper, 0) + num_pages
            else:
                num_counted += num_pages
        return Demand(len(request.tokens) - num_counted * self._page_size, remaining), relieved

    def _relieve(self, demand: Demand, num_pages: int) -> Demand:
        return Demand(demand.current - num_pages * self._page_size, demand.remaining)
