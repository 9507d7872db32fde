"""The connections to one server: kept while they are of use, opened when they are needed, never too many."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

import certifi

from backends.remote.connection import Connection

_MAX_CONNECTIONS = 1_000
_MAX_IDLE = 100
_IDLE_S = 30.0
_CHECK_AFTER_S = 0.5
"""A connection that lay idle for longer is looked at before it is used: most servers close idle ones some time."""


class PoolFull(Exception):
    """No connection became free in time."""


class CannotConnect(Exception):
    """Nobody takes connections there."""


class Pool:
    """Lend connections to `host` and `port`, the last one returned first; each is given back with `release`.

    At most 1,000 are open, of which 100 may lie idle, for 30 s. Raises `PoolFull` where none is free within
    `connect_s`, `TimeoutError` where none can be opened within it, and `CannotConnect`.
    """

    def __init__(self, *, host: str, port: int, is_secure: bool, connect_s: float) -> None:
        self._host = host
        self._port = port
        self._tls = ssl.create_default_context(cafile=certifi.where()) if is_secure else None
        self._connect_s = connect_s
        self._idle: deque[Connection] = deque()
        self._lent: set[Connection] = set()
        self._num_opening = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None

    def take_idle(self) -> Connection | None:
        """Lend a connection that is open already, or None where there is none."""
        loop_s = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            is_young = loop_s - connection.idle_since_s < _CHECK_AFTER_S
            if connection.is_open and (is_young or not connection.was_closed()):
                self._lent.add(connection)
                return connection
            connection.abort()
        return None

    async def acquire(self) -> Connection:
        """Lend a connection, a new one where none is idle."""
        while (connection := self.take_idle()) is None:
            if len(self._lent) + self._num_opening < _MAX_CONNECTIONS:
                return await self._open()
            await self._wait_for_place()
        return connection

    def release(self, connection: Connection) -> None:
        """Take a connection back: kept where its answer was read to the end, closed otherwise."""
        self._lent.discard(connection)
        if connection.is_reusable and connection.is_open and len(self._idle) < _MAX_IDLE:
            loop = asyncio.get_running_loop()
            connection.idle_since_s = loop.time()
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = loop.call_later(_IDLE_S, self._drop_old)
        else:
            connection.abort()
        self._call_next()

    async def aclose(self) -> None:
        """Close every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in (*self._idle, *self._lent):
            connection.abort()
        self._idle.clear()

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        self._num_opening += 1
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
            self._lent.add(connection)
        except TimeoutError:  # an OSError, too
            raise
        except (OSError, UnicodeError) as exc:  # a host's name may be none
            raise CannotConnect(type(exc).__name__) from exc
        finally:
            self._num_opening -= 1
            if len(self._lent) + self._num_opening < _MAX_CONNECTIONS:
                self._call_next()
        return connection

    async def _wait_for_place(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._connect_s):
                await turn
        except TimeoutError as exc:
            raise PoolFull from exc
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._call_next()  # the place is somebody else's now
            raise

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _drop_old(self) -> None:
        """Close what lay idle for too long, and look again when the next one will have."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        while self._idle and (not self._idle[0].is_open or loop.time() - self._idle[0].idle_since_s >= _IDLE_S):
            self._idle.popleft().abort()
        if self._idle:
            self._sweep = loop.call_at(self._idle[0].idle_since_s + _IDLE_S, self._drop_old)
