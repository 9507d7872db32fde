"""The workers of one run, asked together: each tells its part over its control socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestration.core.rpc import RpcClient, RpcError

TIMEOUT_S = 1.0


class Company:
    """Ask every worker for a view of `gateway/control.py`. One that does not answer in time is left out, and named."""

    def __init__(self, run: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._run = run
        self._timeout_s = timeout_s
        self._clients: dict[Path, RpcClient] = {}

    async def ask(self, view: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return each worker's answer by its name, None where there was none."""
        paths = sorted(self._run.glob("w*.sock"))
        answers = await asyncio.gather(*(self._ask_one(path, view, params or {}) for path in paths))
        return {f"worker-{path.stem[1:]}": answer for path, answer in zip(paths, answers, strict=True)}

    async def aclose(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.aclose() for client in clients.values()))

    async def _ask_one(self, path: Path, view: str, params: Mapping[str, Any]) -> Any:
        client = self._clients.get(path)
        if client is None:
            client = self._clients[path] = RpcClient(path)
        try:
            answer, _ = await client.call(view, params, timeout_s=self._timeout_s)
        except RpcError:
            return None
        return answer
