"""Cool-downs shared through Redis: what one worker sees of a backend, all workers of all nodes know within a second."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from gateway.prompt_redis import prompt_redis
from orchestration.core.standing import Standings

POLL_S = 0.4
_MAX_WAITING = 256
_TIMEOUT_S = 0.5
_LONGEST_PAUSE_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Word:
    """Something to tell: `for_s` is None where a cool-down is lifted."""

    id: str
    for_s: float | None = None
    reason: str = ""


class RedisCooldowns:
    """Keep one key a backend, whose time to live is what is left of its cool-down: no clocks are compared.

    `announce` and `lift` only take note; a task of its own tells, and asks every `poll_s`. At most 256 words wait,
    the oldest are dropped. While Redis is down this process goes by what it sees itself.
    """

    def __init__(
        self,
        url: str,
        *,
        standings: Standings,
        ids: Iterable[str],
        poll_s: float = POLL_S,
        prefix: str = "lamina:cool:",
    ) -> None:
        self._redis = prompt_redis(url, timeout_s=_TIMEOUT_S)
        self._standings = standings
        self._ids = tuple(dict.fromkeys(ids))
        self._poll_s = poll_s
        self._prefix = prefix
        self._words: deque[_Word] = deque(maxlen=_MAX_WAITING)
        self._has_words = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        """Begin to tell and to listen."""
        self._task = asyncio.create_task(self._follow(), name="cooldowns")

    def announce(self, id: str, *, for_s: float, reason: str) -> None:
        """Say that a backend is left alone for `for_s` seconds from now."""
        self._tell(_Word(id, for_s, reason))

    def lift(self, id: str) -> None:
        """Say that it answers again."""
        self._tell(_Word(id))

    async def aclose(self) -> None:
        """Stop and close the connection."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=2 * _TIMEOUT_S)
        await self._redis.aclose()

    def _tell(self, word: _Word) -> None:
        self._words.append(word)
        self._has_words.set()

    async def _follow(self) -> None:
        pause_s, is_down = self._poll_s, False
        while not self._is_closing:
            try:
                await self._exchange()
                pause_s, is_down = self._poll_s, False
            except (RedisError, OSError) as exc:
                if not is_down:
                    logger.warning("cooldowns.alone reason=%s", type(exc).__name__)  # its words may quote the URL
                pause_s, is_down = min(2 * pause_s, _LONGEST_PAUSE_S), True
                self._has_words.clear()  # they are told once it is back, not in a busy loop
            if self._is_closing:  # before Python 3.12 the client may lose a cancellation
                return
            try:
                async with asyncio.timeout(pause_s):
                    await self._has_words.wait()
            except TimeoutError:
                pass

    async def _exchange(self) -> None:
        """Tell what there is to tell, and read all that is known, in one round trip."""
        self._has_words.clear()
        words = tuple(self._words)
        async with self._redis.pipeline(transaction=False) as pipe:
            for word in words:
                key = self._prefix + word.id
                if word.for_s is None:
                    pipe.delete(key)
                else:
                    pipe.set(key, word.reason[:64], px=max(1, int(word.for_s * 1000)))
            for id in self._ids:
                pipe.get(self._prefix + id)
                pipe.pttl(self._prefix + id)
            replies = await pipe.execute()
        for _ in range(min(len(words), len(self._words))):
            self._words.popleft()
        found = replies[len(words) :]
        told = {
            id: (left_ms / 1000.0, reason.decode(errors="replace"))
            for id, reason, left_ms in zip(self._ids, found[::2], found[1::2], strict=True)
            if reason is not None and left_ms > 0
        }
        self._standings.hear(self._ids, told)
