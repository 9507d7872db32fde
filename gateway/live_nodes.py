"""Live calls across nodes: what each worker shows, for the other gateways on the same Redis, while somebody watches."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
from redis.exceptions import RedisError

from gateway.live import LiveCalls
from gateway.prompt_redis import prompt_redis

BEAT_S = 1.0
_WATCHED_S = 10
_SHOWN_S = 5
_NAMES_S = 60
_TIMEOUT_S = 0.5
_MAX_ENDED = 50

logger = logging.getLogger(__name__)


class LiveNodes:
    """Put this worker's view into one key, whose time to live is short, while `others` was asked for anywhere lately.

    At most the last 50 ended calls are shown. While Redis is down there are no other nodes. `live` is None where this
    worker has none to show.
    """

    def __init__(
        self,
        url: str,
        *,
        live: LiveCalls | None,
        node: str,
        worker: str,
        beat_s: float = BEAT_S,
        prefix: str = "lamina:live:",
    ) -> None:
        self._redis = prompt_redis(url, timeout_s=_TIMEOUT_S)
        self._live = live
        self._node = node
        self._name = f"{node}/{worker}"
        self._beat_s = beat_s
        self._prefix = prefix
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Begin to show."""
        self._task = asyncio.create_task(self._show_always(), name="live-nodes")

    async def aclose(self) -> None:
        """Stop and close the connection."""
        self._closing.set()  # asked rather than cancelled: before Python 3.12 the client may lose a cancellation
        if self._task is not None and (await asyncio.wait([self._task], timeout=4 * _TIMEOUT_S))[1]:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=2 * _TIMEOUT_S)
        await self._redis.aclose()

    async def others(self) -> list[dict[str, Any]]:
        """Return what the workers of other nodes show, and have them go on showing it."""
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._prefix + "watched", 1, ex=_WATCHED_S)
                pipe.smembers(self._prefix + "names")
                _, found = await pipe.execute()
            names = sorted(name for name in map(bytes.decode, found) if name.partition("/")[0] != self._node)
            shown = await self._redis.mget([self._key(name) for name in names]) if names else []
        except (RedisError, OSError):
            return []
        return [_named(orjson.loads(view), name) for name, view in zip(names, shown, strict=True) if view is not None]

    async def _show_always(self) -> None:
        is_down = False
        while not self._closing.is_set():
            try:
                await self._show()
                is_down = False
            except (RedisError, OSError) as exc:
                if not is_down:
                    logger.warning("live_nodes.alone reason=%s", type(exc).__name__)  # its words may quote the URL
                is_down = True
            try:
                async with asyncio.timeout(self._beat_s):
                    await self._closing.wait()
            except TimeoutError:
                pass

    async def _show(self) -> None:
        if self._live is None or await self._redis.get(self._prefix + "watched") is None:
            return
        view = self._live.view({})
        view["ended"] = view["ended"][-_MAX_ENDED:]
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(self._key(self._name), orjson.dumps(view), ex=_SHOWN_S)
            pipe.sadd(self._prefix + "names", self._name)
            pipe.expire(self._prefix + "names", _NAMES_S)  # names of nodes that are gone go when nobody watches
            await pipe.execute()

    def _key(self, name: str) -> str:
        return f"{self._prefix}of:{name}"


def _named(view: dict[str, Any], name: str) -> dict[str, Any]:
    """Say of each call where it is: workers' names are the same on every node."""
    node, _, worker = name.partition("/")
    for call in (*view["running"], *view["ended"]):
        call["worker"] = f"{worker} on {node}"
    return view
