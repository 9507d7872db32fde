"""Postgres without threads: psycopg2's asynchronous connections, waited for by the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg2
from psycopg2 import extensions

from cache.store import StoreDown

_CONNECT_S = 5.0


class Postgres:
    """Run single statements, each a transaction of its own, over at most `max_connections` connections.

    Every method raises `StoreDown` where the database does not work, or has not answered by the deadline; a
    connection whose statement did not end is closed. `session` is what each connection is set to.
    """

    def __init__(self, url: str, *, session: str = "", max_connections: int = 4, timeout_s: float = 1.0) -> None:
        self._url = _as_libpq(url)
        self._session = session
        self._timeout_s = timeout_s
        self._idle: deque[Any] = deque()
        self._free = asyncio.Semaphore(max_connections)
        self._is_closed = False

    async def run(
        self, statement: str, params: Sequence[Any] = (), *, timeout_s: float | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the statement's rows, none for one that has none. A statement may be run twice.

        That is where an idle connection proves to be broken, as after a restart of the database.
        """
        limit_s = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._run_on(statement, params, is_new=False)
                except (psycopg2.OperationalError, psycopg2.InterfaceError):
                    self._drop_idle()
                return await self._run_on(statement, params, is_new=True)
        except TimeoutError as exc:
            raise StoreDown(f"the database did not answer within {limit_s:g} s") from exc
        except psycopg2.Error as exc:
            raise StoreDown(f"the database does not work: {type(exc).__name__} {exc.pgcode or ''}".strip()) from exc

    async def aclose(self) -> None:
        """Close the connections; statements under way end with `StoreDown`."""
        self._is_closed = True
        self._drop_idle()

    async def _run_on(self, statement: str, params: Sequence[Any], *, is_new: bool) -> list[tuple[Any, ...]]:
        async with self._free, self._connection(is_new=is_new) as connection:
            cursor = connection.cursor()
            # Without parameters a percent sign is one; with them psycopg2 writes them in as literals.
            cursor.execute(statement, tuple(params) or None)
            await _wait(connection)
            return list(cursor.fetchall()) if cursor.description is not None else []

    @asynccontextmanager
    async def _connection(self, *, is_new: bool) -> AsyncGenerator[Any, None]:
        connection = self._idle.pop() if self._idle and not is_new else await self._connect()
        try:
            yield connection
        except psycopg2.OperationalError:
            connection.close()
            raise
        except psycopg2.Error:
            self._keep(connection)  # the statement was wrong, and the connection is well
            raise
        except BaseException:
            connection.close()  # its statement is still under way
            raise
        self._keep(connection)

    async def _connect(self) -> Any:
        # Finding the host's address blocks, hence the thread; all else is polled.
        connection = await asyncio.to_thread(psycopg2.connect, self._url, async_=1)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await _wait(connection)
                if self._session:
                    cursor = connection.cursor()  # to be held until its statement has ended
                    cursor.execute(self._session)
                    await _wait(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep(self, connection: Any) -> None:
        if self._is_closed or connection.closed:
            connection.close()
        else:
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(psycopg2.Error):
                self._idle.pop().close()


async def _wait(connection: Any) -> None:
    """Wait until what was asked of the connection is done."""
    loop = asyncio.get_running_loop()
    while (state := connection.poll()) != extensions.POLL_OK:
        handle, ready = connection.fileno(), asyncio.Event()
        if state == extensions.POLL_READ:
            loop.add_reader(handle, ready.set)
        else:
            loop.add_writer(handle, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(handle)
            loop.remove_writer(handle)


def _as_libpq(url: str) -> str:
    """Write a URL of SQLAlchemy's as one of the database's own."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}"
