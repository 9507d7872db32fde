"""The supervisor's hand on a worker: new settings are prepared, then committed or discarded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.generations import Generation, Generations
from orchestration.core.rpc import RpcServer


class Control:
    """Serve `prepare`, `commit` and `discard` on the worker's control socket.

    `build(path)` makes a generation from a settings' file, and raises where it cannot be one.
    """

    def __init__(self, generations: Generations, *, build: Callable[[Path], Generation]) -> None:
        self._generations = generations
        self._build = build
        self._server = RpcServer({"prepare": self._prepare, "commit": self._commit, "discard": self._discard})

    async def start(self, socket: Path) -> None:
        """Listen."""
        await self._server.start(socket)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._server.aclose()

    async def _prepare(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        await self._generations.prepare(self._build(Path(params["config"])))
        return None, b""

    async def _commit(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        return self._generations.commit(), b""

    async def _discard(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        await self._generations.discard()
        return None, b""
