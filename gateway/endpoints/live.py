"""`GET /admin/live`: the calls of all workers while they run, as JSON once or as a feed of events."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from gateway.access import Gatekeeper
from gateway.admin_parts import AdminParts
from gateway.dialects.sse import HEADERS, KEEP_ALIVE
from gateway.endpoints.generation import while_connected
from gateway.exchange import Exchange

BEAT_S = 0.5
KEEP_ALIVE_S = 10.0
MAX_ENDED = 200
_NO_STORE = ((b"cache-control", b"no-store"),)
View = dict[str, Any]


class Live:
    """Show what runs and what ended, merged over the workers of this node and, by name, over other nodes.

    A feed's first event has everything, further ones what ended since and what runs now; none is sent while nothing
    changes. It ends when `ending` is set: whoever watches asks again.
    """

    def __init__(
        self, admin: AdminParts, *, gatekeeper: Gatekeeper, ending: asyncio.Event, beat_s: float = BEAT_S
    ) -> None:
        self._admin = admin
        self._gatekeeper = gatekeeper
        self._ending = ending
        self._beat_s = beat_s

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with events where the client accepts them, else with one view."""
        exchange.label = "/admin"
        self._gatekeeper.check_admin(exchange.headers)
        if b"text/event-stream" in exchange.headers.get(b"accept", b""):
            await while_connected(exchange, self._feed(exchange))
            return
        await exchange.reply(200, orjson.dumps(await self._view({})), headers=_NO_STORE)

    async def _feed(self, exchange: Exchange) -> None:
        seen: dict[str, int] = {}
        shown: object = None
        quiet_since = time.monotonic()
        while not self._ending.is_set():
            view = await self._view(seen)
            running = [(call["id"], call["backend"], call["cache"]["status"]) for call in view["running"]]
            if view["ended"] or running or shown != running:
                shown, quiet_since = running, time.monotonic()
                await exchange.send_piece(b"event: calls\ndata: " + orjson.dumps(view) + b"\n\n", headers=HEADERS)
            elif time.monotonic() - quiet_since > KEEP_ALIVE_S:
                quiet_since = time.monotonic()
                await exchange.send_piece(KEEP_ALIVE, headers=HEADERS)
            await self._wait()
        await exchange.send_piece(b"", headers=HEADERS, is_last=True)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._beat_s):
                await self._ending.wait()
        except TimeoutError:
            return

    async def _view(self, seen: dict[str, int]) -> View:
        """Merge the workers' views, and note in `seen` how far each one is."""
        answers = await self._admin.ask_workers("live", {"seen": seen})
        views = [answer for answer in answers.values() if answer is not None]
        if self._admin.nodes is not None:
            views += [_unseen(view, seen) for view in await self._admin.nodes()]
        seen.clear()
        seen.update({view["name"]: view["number"] for view in views})
        ended = _newest_first(call for view in views for call in view["ended"])[:MAX_ENDED]
        running = _newest_first(call for view in views for call in view["running"])
        return {
            "now": time.time(),
            "num_running": sum(view["num_running"] for view in views),
            "running": [self._named(call) for call in running],
            "ended": [self._named(call) for call in ended],
            "workers": {name: answer is not None for name, answer in answers.items()},
        }

    def _named(self, call: View) -> View:
        holder = self._admin.holder_of(call["tenant"])
        return {**call, "key": None if holder is None else holder.name}


def _unseen(view: Any, seen: dict[str, int]) -> View:
    """Leave out of a whole view what was seen; the newest of its ended calls has its number."""
    is_new = view["number"] - seen.get(view["name"], 0)
    return {**view, "ended": view["ended"][-is_new:] if is_new > 0 else []}


def _newest_first(calls: Any) -> list[View]:
    return sorted(calls, key=lambda call: str(call["id"]), reverse=True)
