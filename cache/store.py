"""What a cache asks of a key-value store."""

from __future__ import annotations

from typing import Protocol

from cache.card import Card


class StoreDown(Exception):
    """The store cannot be reached or refuses to work; the message holds no secret."""


class StoreSlow(StoreDown):
    """The store did not answer within the deadline."""


class StoreFull(StoreDown):
    """The store has no room for another value; what it holds it still gives."""


class Store(Protocol):
    """Keep bytes by key until their time is over. Every method raises `StoreDown` where the store does not work."""

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none or its time is over; reading never lengthens its life."""
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float, card: Card | None = None) -> None:
        """Keep the value for `ttl_s` seconds (more than 0), in place of any earlier one.

        With a `card` a store that can lists the value by it; raises `Invalidated` where an invalidation that covers
        the card came after its epoch.
        """
        ...

    async def delete(self, key: str) -> None:
        """Forget the value, if there is one."""
        ...


class Ledger(Protocol):
    """What the caches ask, and tell, of the entries as a whole; neither waits for anything."""

    @property
    def epoch(self) -> int:
        """Number the latest invalidation that is known here, at most a moment old; 0 where none is."""
        ...

    def hit(self, key: str) -> None:
        """Count a hit of the value under the store's key."""
        ...

    def is_gone(self, partition: str, entry: str) -> None:
        """Hear that the index names an entry whose value is gone: its row is of no more use."""
        ...


class NoLedger:
    """Know of no invalidation and count nothing: for a store without cards."""

    @property
    def epoch(self) -> int:
        """Give 0."""
        return 0

    def hit(self, key: str) -> None:
        """Do nothing."""

    def is_gone(self, partition: str, entry: str) -> None:
        """Do nothing."""


class Leases(Protocol):
    """Elect one among workers and nodes: at most one holds a lease, and it ends by itself."""

    async def acquire(self, key: str, *, ttl_s: float) -> str | None:
        """Take the lease for `ttl_s` seconds and return its token, or None while another holds it."""
        ...

    async def release(self, key: str, token: str) -> None:
        """Give the lease back, if `token` still holds it."""
        ...
