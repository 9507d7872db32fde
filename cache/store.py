"""What a cache asks of a key-value store."""

from __future__ import annotations

from typing import Protocol


class StoreDown(Exception):
    """The store cannot be reached or refuses to work; the message holds no secret."""


class StoreSlow(StoreDown):
    """The store did not answer within the deadline."""


class Store(Protocol):
    """Keep bytes by key until their time is over. Every method raises `StoreDown` where the store does not work."""

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none or its time is over; reading never lengthens its life."""
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Keep the value for `ttl_s` seconds (more than 0), in place of any earlier one."""
        ...

    async def delete(self, key: str) -> None:
        """Forget the value, if there is one."""
        ...


class Leases(Protocol):
    """Elect one among workers and nodes: at most one holds a lease, and it ends by itself."""

    async def acquire(self, key: str, *, ttl_s: float) -> str | None:
        """Take the lease for `ttl_s` seconds and return its token, or None while another holds it."""
        ...

    async def release(self, key: str, token: str) -> None:
        """Give the lease back, if `token` still holds it."""
        ...
