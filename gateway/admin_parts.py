"""What the admin side shows beyond one call: given by wiring, and empty where nothing gives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter

from logging_layer.listing import Wanted

Row = dict[str, Any]
AskWorkers = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Ask every worker for a view (`live`, `backends`); gives each one's answer by name, None where there was none."""


class Listing(Protocol):
    """Read many calls back; raises `logging_layer.listing.ListingDown`."""

    async def find(self, wanted: Wanted, *, limit: int) -> list[Row]:
        """Return calls, the newest first."""
        ...

    async def sums(self, by: str, *, since: float) -> list[Row]:
        """Sum calls by a column since a Unix time."""
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose calls they are: an issued key, without anything of its secret but the last four characters."""

    name: str
    team: str | None
    last_four: str


class NoListing:
    """Have no calls."""

    async def find(self, wanted: Wanted, *, limit: int) -> list[Row]:
        """Return none."""
        return []

    async def sums(self, by: str, *, since: float) -> list[Row]:
        """Return none."""
        return []


async def _nobody(_view: str, _params: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


def _no_holder(_tenant: str) -> Holder | None:
    return None


@dataclass(frozen=True, slots=True)
class AdminParts:
    """Where the admin side looks."""

    ask_workers: AskWorkers = _nobody
    routers: Sequence[APIRouter] = ()
    """Further routes below `/admin`."""
    listing: Listing = field(default_factory=NoListing)
    facts: Callable[[], Mapping[str, Any]] = dict
    """What does not change while this pipeline is in use, and the supervisor's word about its processes."""
    holder_of: Callable[[str], Holder | None] = _no_holder
    """Who holds the key that a tenant's name stands for."""
    nodes: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]] | None = None
    """What the other nodes on the same Redis show of their calls."""
