"""A worker as it is, wired from settings over a real Valkey and scripted upstreams, and what it must not leak."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.limits.key_table import KeyHash, KeyTable
from gateway.settings import parse_settings
from gateway.supervisor.place import Sockets
from gateway.supervisor.state import StateFolder
from gateway.wired import Surroundings, Wired
from gateway.wiring import wire
from orchestration.core import Secret
from tests.backends.remote.fake_upstream import FakeUpstream, chunk, streaming
from tests.gateway.serving import CHAT, Reply, ask, chat, served


@dataclass(frozen=True)
class Whole:
    """A worker that serves."""

    port: int
    wired: Wired
    table: KeyTable

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path: str, body: bytes | dict[str, Any] = b"", **options: Any) -> Reply:
        return await ask(self.port, path, body, **options)

    def in_flight(self) -> int:
        """Count the calls that the router believes to be at a backend."""
        return sum(each["in_flight"] for model in self.wired.watch.describe() for each in model["backends"])


@contextlib.asynccontextmanager
async def whole(folder: Path, settings: str) -> AsyncIterator[Whole]:
    """Wire a worker over the settings and serve it."""
    state = StateFolder(folder / ".lamina")
    state.hold()
    state.ensure_tenant_key()
    place = Surroundings(
        state=state, sockets=Sockets(folder), folder=folder, worker="worker-0", is_draining=lambda: False
    )
    table = KeyTable(state.database_url, KeyHash(Secret(state.tenant_key_file.read_text())))
    wired = wire(parse_settings(settings, environment={}), place)
    wired.parts = replace(wired.parts, metrics_folder=None)
    await wired.start()
    try:
        async with served(wired.parts) as port:
            yield Whole(port, wired, table)
    finally:
        await wired.aclose()
        table.close()
        state.release()


def remote_settings(upstream: FakeUpstream, valkey_url: str, *, type: str = "openai_compatible", more: str = "") -> str:
    """Write settings of one model at a remote server, whose caller may have one call at a time and is not retried.

    The model `spare` is at the same server, and is asked even while `tiny` is left alone for what it did.
    """
    return f"""
models:
  - id: tiny
    retries: 0
    backends: [{{type: {type}, base_url: "{upstream.url}", model: there, api_key: sk-upstream}}]
  - {{id: spare, backends: [{{type: openai_compatible, base_url: "{upstream.url}", model: spare}}]}}
cache: {{semantic: {{enabled: false}}, exact: {{enabled: false}}}}
limits: {{default: {{parallel: 1}}}}
routing: {{health_interval_s: null}}
redis: {{url: "{valkey_url}"}}
{more}
"""


def good(content: str = "Hello") -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Answer as a server does that is well."""
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    return streaming(chunk(content=content), chunk(finish="stop"), usage)


class Leaks:
    """What is held after a good call, for comparison with what is held after bad ones."""

    def __init__(self, here: Whole, upstream: FakeUpstream) -> None:
        self._here = here
        self._upstream = upstream
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_open = 0

    async def begin(self) -> None:
        """Make one good call, which connects and starts what is connected and started once."""
        script = self._upstream.script
        await self.check_slot()
        await until(lambda: self._here.in_flight() == 0)
        self._tasks = asyncio.all_tasks()
        self._num_open = self._upstream.num_open
        self._upstream.script = script
        self._upstream.was_asked.clear()

    async def check(self) -> None:
        """Wait until no call, no task and no connection but a kept one is left, and find the caller's slot free."""
        await until(lambda: self._here.in_flight() == 0 and self._upstream.num_open <= self._num_open + 1)
        await until(lambda: len(asyncio.all_tasks() - self._tasks) <= 1)
        await self.check_slot()

    async def check_slot(self) -> None:
        """The caller may have one call at a time: it is answered only if no call before it holds its slot."""
        self._upstream.script = good()
        for _ in range(2):
            async with asyncio.timeout(60):
                reply = await self._here.ask(CHAT, chat(model="spare", stream=True))
            assert (reply.status, b"[DONE]" in reply.body) == (200, True), reply


async def until(is_so: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 60.0) -> None:
    """Ask again and again until it is so."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)
