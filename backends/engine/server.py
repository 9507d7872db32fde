"""The engine link's server: many connections, one engine, and never a wait for a reader."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from backends.engine import wire
from backends.engine.loop import Report
from backends.engine.numbers import Snapshot
from backends.engine.types import Output, Refused, Submission

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """What the server needs of the engine's thread; nothing here blocks."""

    def submit(self, ticket: int, submission: Submission) -> None:
        """Pass a request on. Raises `Refused`."""

    def abort(self, ticket: int) -> None:
        """End a request."""

    def stats(self) -> Mapping[str, float]:
        """Return the newest numbers."""

    def histograms(self) -> Snapshot:
        """Return the histograms of steps and requests."""

    def check(self, tell: Callable[[str | None], None]) -> None:
        """Look whether the books agree; `tell` gets what is wrong, or `None`, in the engine's thread."""


class EngineServer:
    """Serve the link on one address; all of it runs on one event loop, except `deliver`.

    A connection whose reader leaves `max_buffer_bytes` unread is cut, and one that is lost has its requests aborted.
    What the engine tells while the event loop is busy is done in one turn, with one write for each connection: an
    engine that is faster than the loop costs it no more turns, so it never runs far ahead of a reader that is lost.
    """

    def __init__(self, info: Mapping[str, Any], *, max_buffer_bytes: int = 8 << 20) -> None:
        self._info = {"op": "info", **info}
        self._max_buffer_bytes = max_buffer_bytes
        self._tickets = itertools.count(1)
        self._owners: dict[int, tuple[_Connection, int]] = {}
        self._connections: set[_Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._engine: Engine | None = None
        self._told: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    async def start(self, address: str, engine: Engine) -> str:
        """Listen at `unix:///path` or `tcp://host:port`; returns the address with the port that was taken.

        Raises `ValueError` for an address that is neither, and `OSError` where it cannot listen.
        """
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        parts = urlsplit(address)
        if parts.scheme == "unix" and parts.path:
            self._server = await self._loop.create_unix_server(self._connect, parts.path)
            return address
        if parts.scheme == "tcp" and parts.hostname and parts.port is not None:
            self._server = await self._loop.create_server(self._connect, parts.hostname, parts.port)
            return f"tcp://{parts.hostname}:{self._server.sockets[0].getsockname()[1]}"
        raise ValueError(f"cannot listen at '{address}': give unix:///path or tcp://host:port")

    async def aclose(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cut("the engine ends")
        if self._server is not None:
            await self._server.wait_closed()

    def deliver(self, report: Report) -> None:
        """Take what happened in a step; called in the engine's thread."""
        self._post(partial(self._send, report))

    def _post(self, work: Callable[[], None]) -> None:
        """Let the event loop do something, in the order of the calls; called in the engine's thread."""
        assert self._loop is not None
        with self._lock:
            is_due = bool(self._told)
            self._told.append(work)
        if is_due:
            return
        try:
            self._loop.call_soon_threadsafe(self._do_told)
        except RuntimeError:
            logger.info("engine.late_step the event loop has ended")

    def _do_told(self) -> None:
        with self._lock:
            told, self._told = self._told, []
        for work in told:
            work()
        for connection in list(self._connections):
            connection.flush()

    def _connect(self) -> _Connection:
        assert self._engine is not None
        connection = _Connection(self, max_buffer_bytes=self._max_buffer_bytes)
        self._connections.add(connection)
        return connection

    def _send(self, report: Report) -> None:
        for ticket, refused in report.refusals:
            owner = self._owners.pop(ticket, None)
            if owner is not None:
                owner[0].refuse(owner[1], refused)
        by_connection: dict[_Connection, list[tuple[int, Output]]] = {}
        for ticket, output in report.outputs:
            owner = self._owners.get(ticket)  # none where it was aborted while the step ran
            if owner is not None:
                by_connection.setdefault(owner[0], []).append((owner[1], output))
                if output.finish is not None:
                    del self._owners[ticket]
        for connection, rows in by_connection.items():
            connection.send_step(rows)

    def info(self) -> Mapping[str, Any]:
        """Return the answer to hello."""
        return self._info

    def stats(self) -> Mapping[str, Any]:
        """Return the answer to stats."""
        assert self._engine is not None
        return {"op": "stats", **self._engine.stats(), "histograms": self._engine.histograms()}

    def submit(self, connection: _Connection, request_id: int, submission: Submission) -> int:
        """Pass a request on; returns its ticket. Raises `Refused`."""
        assert self._engine is not None
        ticket = next(self._tickets)
        self._engine.submit(ticket, submission)
        self._owners[ticket] = (connection, request_id)
        return ticket

    def abort(self, ticket: int) -> None:
        """End a request; none of its rows is sent from now on."""
        assert self._engine is not None
        if self._owners.pop(ticket, None) is not None:
            self._engine.abort(ticket)

    def check(self, connection: _Connection) -> None:
        """Tell a connection, before the next step, whether pages, locks and requests agree."""
        assert self._engine is not None
        self._engine.check(lambda fault: self._post(partial(connection.tell_checked, fault)))

    def forget(self, connection: _Connection) -> None:
        """Let a lost connection go."""
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One worker's connection: its ids, its live requests, and its bounded buffer."""

    def __init__(self, server: EngineServer, *, max_buffer_bytes: int) -> None:
        self._server = server
        self._max_buffer_bytes = max_buffer_bytes
        self._reader = wire.FrameReader()
        self._transport: asyncio.Transport | None = None
        self._live: dict[int, int] = {}
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.forget(self)
        for ticket in self._live.values():
            self._server.abort(ticket)
        self._live.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._answer(message)
        except wire.BadFrame as exc:
            self.cut(str(exc))
        self.flush()

    def send_step(self, rows: Sequence[tuple[int, Output]]) -> None:
        """Send one step's rows."""
        for request_id, output in rows:
            if output.finish is not None:
                self._live.pop(request_id, None)
        self._send(wire.step_message(rows))

    def refuse(self, request_id: int, refused: Refused) -> None:
        """Tell that a request was not taken."""
        self._live.pop(request_id, None)
        self._send(wire.refused_message(request_id, refused))

    def tell_checked(self, fault: str | None) -> None:
        """Tell what is wrong with the engine's books, or that nothing is."""
        self._send({"op": "checked", "fault": fault})

    def flush(self) -> None:
        """Write what was told in this turn of the loop; cuts the connection where too much of it is left unread."""
        unsent, self._unsent = self._unsent, []
        if not unsent or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(b"".join(unsent))
        if self._transport.get_write_buffer_size() > self._max_buffer_bytes:
            self.cut(f"its reader left more than {self._max_buffer_bytes} bytes unread")

    def cut(self, reason: str) -> None:
        """Drop the connection; its requests are aborted when it is lost."""
        if self._transport is not None:
            logger.warning("engine.connection_cut reason=%s", reason)
            self._transport.abort()

    def _answer(self, message: Mapping[str, Any]) -> None:
        match message["op"]:
            case "submit":
                self._submit(message)
            case "abort":
                ticket = self._live.pop(message.get("id", -1), None)
                if ticket is not None:
                    self._server.abort(ticket)
            case "hello":
                self._send(self._server.info())
            case "stats":
                self._send(self._server.stats())
            case "check":
                self._server.check(self)
            case other:
                raise wire.BadFrame(f"an unknown op '{other}'")

    def _submit(self, message: Mapping[str, Any]) -> None:
        request_id = message.get("id")
        if type(request_id) is not int or request_id in self._live:
            raise wire.BadFrame(f"a submit whose id {request_id!r} is no integer or is still in use")
        try:
            self._live[request_id] = self._server.submit(self, request_id, wire.read_submission(message))
        except Refused as refused:
            self.refuse(request_id, refused)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._unsent.append(wire.encode(message))
