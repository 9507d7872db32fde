"""The link to the engine: one connection per worker, made when it is first needed and again after a break."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from backends.local.connection import EngineConnection, EngineInfo
from backends.local.frames import FrameError
from backends.local.generation import Generation, Submission
from orchestration.core.errors import BackendError, BackendTimeout, BackendUnavailable

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_LEAST_RETRY_S = 1.0  # for callers: an engine that died is back in tens of seconds, and clients retry but a few times


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """A histogram: its buckets' upper bounds, the cumulative counts (one more than bounds), the sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Measures:
    """What an engine measured since its start."""

    model: str
    numbers: Mapping[str, float]
    histograms: Mapping[str, HistogramCounts]


class EngineLink:
    """Reach the engine at `unix:///path` or `tcp://host:port`.

    While it cannot be reached, tries are spaced by a wait that doubles up to 2 s, and calls in between fail at once
    with `BackendUnavailable`, which says when to come back.
    """

    def __init__(self, address: str, *, connect_s: float = 5.0, stall_s: float = 60.0) -> None:
        self._address = _read_address(address)
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._connection: EngineConnection | None = None
        self._info: EngineInfo | None = None
        self._connecting = asyncio.Lock()
        self._num_failures = 0
        self._retry_at_s = 0.0
        self._is_closed = False

    async def info(self) -> EngineInfo:
        """Return what the engine says of itself, connecting where needed; raises `BackendUnavailable`."""
        return (await self._connect())[1]

    async def submit(self, submissions: Sequence[Submission]) -> Generation:
        """Hand one call's sequences to the engine; raises `BackendUnavailable`."""
        return (await self._connect())[0].submit(submissions)

    async def stats(self, *, timeout_s: float = 2.0) -> Mapping[str, float]:
        """Return the engine's numbers; raises `BackendUnavailable` or `BackendTimeout`."""
        reply = await self._ask_stats(timeout_s)
        return {name: float(value) for name, value in reply.items() if isinstance(value, (int, float))}

    async def measures(self, *, timeout_s: float = 2.0) -> Measures:
        """Return the engine's numbers and histograms; raises `BackendUnavailable` or `BackendTimeout`."""
        reply = await self._ask_stats(timeout_s)
        assert self._info is not None
        return Measures(
            model=self._info.name,
            numbers={name: float(value) for name, value in reply.items() if isinstance(value, (int, float))},
            histograms={
                str(name): HistogramCounts(tuple(bounds), tuple(counts), float(total))
                for name, (bounds, counts, total) in reply.get("histograms", {}).items()  # older engines have none
            },
        )

    async def aclose(self) -> None:
        """Close the connection; calls in flight end with `BackendUnavailable`, and so do later ones."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()

    async def _ask_stats(self, timeout_s: float) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                connection, _ = await self._connect()
                return await connection.ask("stats", reply="stats")
        except TimeoutError as exc:
            raise BackendTimeout(f"the engine gave no numbers within {timeout_s:g} s") from exc

    async def _connect(self) -> tuple[EngineConnection, EngineInfo]:
        if self._connection is None or not self._connection.is_open:
            async with self._connecting:
                if self._connection is None or not self._connection.is_open:
                    self._check_may_try()
                    self._connection, self._info = await self._try()
        assert self._connection is not None
        assert self._info is not None
        return self._connection, self._info

    def _check_may_try(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("the link to the engine is closed")
        wait_s = self._retry_at_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            raise _unreachable(wait_s)

    async def _try(self) -> tuple[EngineConnection, EngineInfo]:
        connection: EngineConnection | None = None
        info: EngineInfo | None = None
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._open()
                info = EngineInfo.read(await connection.ask("hello", reply="info"))
        except (OSError, TimeoutError, FrameError, BackendError) as exc:
            wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**self._num_failures)
            self._num_failures += 1
            self._retry_at_s = asyncio.get_running_loop().time() + wait_s
            reason = str(exc) or f"no answer within {self._connect_s:g} s"
            raise _unreachable(wait_s, f": {reason}") from exc
        finally:
            if connection is not None and info is None:
                connection.close()
        self._num_failures = 0
        return connection, info

    async def _open(self) -> EngineConnection:
        loop = asyncio.get_running_loop()

        def build() -> EngineConnection:
            return EngineConnection(stall_s=self._stall_s)

        if isinstance(self._address, str):
            _, connection = await loop.create_unix_connection(build, self._address)
        else:
            _, connection = await loop.create_connection(build, *self._address)
        return connection


def _read_address(address: str) -> str | tuple[str, int]:
    """Return a path, or a host and a port; raises `ValueError`."""
    parts = urlsplit(address)
    if parts.scheme == "unix" and parts.path:
        return parts.path
    if parts.scheme == "tcp" and parts.hostname and parts.port:
        return parts.hostname, parts.port
    raise ValueError(f"an engine's address is unix:///path or tcp://host:port, not '{address}'")


def _unreachable(wait_s: float, why: str = "") -> BackendUnavailable:
    return BackendUnavailable(f"the engine cannot be reached{why}", retry_after_s=max(_LEAST_RETRY_S, wait_s))
