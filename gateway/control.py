"""The supervisor's hand on a worker: new settings are prepared, then committed or discarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.generations import Generation, Generations
from orchestration.core.rpc import Method, RpcServer

View = Callable[[Mapping[str, Any]], Any]
"""Give what this worker sees, as JSON's values."""


class Control:
    """Serve `prepare`, `commit` and `discard` on the worker's control socket, its `views` and `methods` by their names.

    `build(path)` makes a generation from a settings' file, and raises where it cannot be one.
    """

    def __init__(
        self,
        generations: Generations,
        *,
        build: Callable[[Path], Generation],
        views: Mapping[str, View] | None = None,
        methods: Mapping[str, Method] | None = None,
    ) -> None:
        self._generations = generations
        self._build = build
        changes: dict[str, Method] = {"prepare": self._prepare, "commit": self._commit, "discard": self._discard}
        shown = {name: _shown(view) for name, view in (views or {}).items()}
        self._server = RpcServer({**changes, **shown, **(methods or {})})

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


def _shown(view: View) -> Method:
    async def show(params: Any, _payload: bytes) -> tuple[Any, bytes]:
        return view(params), b""

    return show
