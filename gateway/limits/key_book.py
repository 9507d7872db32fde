"""The keys as a worker knows them: read ahead, so that no call waits for the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gateway.limits.errors import KeysUnavailable
from gateway.limits.key_table import PREFIX, Key, KeyHash, KeyTable, KeyTableDown
from orchestration.core.errors import Unauthorized

logger = logging.getLogger(__name__)
REFRESH_S = 1.0


class KeyBook:
    """Hold every key in memory and look each `refresh_s` whether the table changed; for up to 100,000 keys or so.

    While the database is away the last known keys hold. Until it could be read once, nobody but the master is let
    in: it may hold keys. Implements `gateway.parts.KeyRing` and `gateway.limits.rules.Keys`.
    """

    def __init__(
        self,
        table: KeyTable,
        hash_of: KeyHash,
        *,
        is_required: bool,
        refresh_s: float = REFRESH_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._hash_of = hash_of
        self._is_required = is_required
        self._refresh_s = refresh_s
        self._clock = clock
        self._by_hash: dict[bytes, Key] = {}
        self._by_id: dict[str, Key] = {}
        self._version: tuple[int, int] | None = None
        self._problem: str | None = "the keys have not been read yet"
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys and go on watching them."""
        await self.refresh()
        self._refreshing = asyncio.create_task(self._refresh_always(), name="key-refresh")

    async def aclose(self) -> None:
        """Stop watching, and close the table."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await asyncio.to_thread(self._table.close)

    @property
    def is_in_use(self) -> bool:
        """Tell whether a call needs a key: keys are required, or one was ever made. Raises `KeysUnavailable`."""
        if self._version is None:
            raise KeysUnavailable("The keys cannot be read right now; try again in a moment.", retry_after_s=1.0)
        return self._is_required or bool(self._by_id)

    def admit(self, bearer: str) -> str:
        """Return the id of the live key that this bearer is; raises `Unauthorized`."""
        key = self._by_hash.get(self._hash_of(bearer)) if bearer.startswith(PREFIX) else None
        if key is None:
            raise Unauthorized("Incorrect API key provided.")
        state = key.state_at(self._clock())
        if state != "live":
            raise Unauthorized(f"This API key is {state}.")
        return key.id

    def may_use(self, key_id: str, model: str) -> bool:
        """Tell whether the key may ask for the model; what is no key of the table may ask for all."""
        key = self._by_id.get(key_id)
        return key is None or key.models is None or model in key.models

    def by_id(self, key_id: str) -> Key | None:
        """Return the key of this id."""
        return self._by_id.get(key_id)

    async def check_health(self) -> str | None:
        """Say why the keys could not be read the last time, or None."""
        return self._problem

    async def refresh(self) -> None:
        """Read the keys anew where they changed."""
        try:
            version = await asyncio.to_thread(self._table.version)
            if version != self._version:
                keys = await asyncio.to_thread(self._table.list)
                self._by_hash = {key.hash: key for key in keys}
                self._by_id = {key.id: key for key in keys}
                self._version = version
        except KeyTableDown as exc:
            if self._problem is None:
                logger.warning("keys.unreadable error=%s", exc)
            self._problem = str(exc)
        else:
            self._problem = None

    async def _refresh_always(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self.refresh()
