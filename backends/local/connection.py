"""One connection to the engine: many calls at once, told apart by their ids."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from backends.local.capacity import Capacity
from backends.local.frames import FrameError, FrameReader, encode_frame
from backends.local.generation import EngineRefused, Generation, Submission
from orchestration.core.errors import BackendUnavailable

MAX_UNSENT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine says of itself: the model's name, its context in tokens, its end tokens, its pages."""

    name: str
    revision: str
    vocab_size: int
    max_len: int
    eos_ids: tuple[int, ...]
    page_size: int
    num_pages: int

    @property
    def capacity(self) -> Capacity:
        """Return what one call may have: the context, or the memory if that is less."""
        return Capacity(min(self.max_len, self.page_size * self.num_pages), self.max_len)

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> EngineInfo:
        """Read the engine's `info`; raises `FrameError` where a field is missing."""
        try:
            return cls(
                name=str(message["name"]),
                revision=str(message["revision"]),
                vocab_size=int(message["vocab_size"]),
                max_len=int(message["max_len"]),
                eos_ids=tuple(message["eos_ids"]),
                page_size=int(message["page_size"]),
                num_pages=int(message["num_pages"]),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise FrameError(f"the engine's info is not as agreed: {exc!r}") from exc


class EngineConnection(asyncio.Protocol):
    """Speak the link's frames. When the connection is lost, every call on it ends with `BackendUnavailable`."""

    def __init__(self, *, stall_s: float) -> None:
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self._calls: dict[int, tuple[Generation, int]] = {}
        self._last_id = 0
        self._replies: dict[str, deque[asyncio.Future[dict[str, Any]]]] = {"info": deque(), "stats": deque()}

    @property
    def is_open(self) -> bool:
        """Tell whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def num_sequences(self) -> int:
        """Count the sequences that the engine works on for this connection."""
        return len(self._calls)

    async def ask(self, question: str, *, reply: str) -> dict[str, Any]:
        """Send `hello` or `stats` and return the reply; raises `BackendUnavailable`. The caller sets the deadline."""
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._send({"op": question})
        self._replies[reply].append(future)
        return await future

    def submit(self, submissions: Sequence[Submission]) -> Generation:
        """Hand sequences to the engine and return where they are received; raises `BackendUnavailable`."""
        first_id = self._last_id + 1
        self._last_id += len(submissions)
        generation = Generation(
            [submission.max_tokens for submission in submissions],
            abort=lambda index: self._abort(first_id + index),
            now=self._loop.time,
            stall_s=self._stall_s,
        )
        for index, submission in enumerate(submissions):
            self._send({"op": "submit", "id": first_id + index, **submission.as_message()})
            self._calls[first_id + index] = (generation, index)
        return generation

    def close(self) -> None:
        """Close the connection at once; the engine aborts what it has of it."""
        if self._transport is not None:
            self._transport.abort()
        self._lose("the connection to the engine was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio calls this)."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's transports are no subclass of it

    def data_received(self, data: bytes) -> None:
        """Hand out what came (asyncio calls this); a connection that sends nonsense is closed."""
        try:
            for message in self._frames.feed(data):
                self._receive(message)
        except (FrameError, KeyError, TypeError, ValueError) as exc:
            assert self._transport is not None
            self._transport.abort()
            self._lose(f"the engine sent what is not as agreed: {exc!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call (asyncio calls this)."""
        self._lose("the connection to the engine broke" + (f": {exc}" if exc else ""))

    def _receive(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "step":
                for request_id, events in message.get("events", ()):  # older engines do not tell
                    generation, index = self._calls.get(request_id, (None, 0))
                    if generation is not None:
                        generation.note(index, events)
                for request_id, *row in message["rows"]:
                    self._deliver(request_id, row)
            case "refused":
                error = EngineRefused(message["code"], message["message"], retry_after_s=message.get("retry_after_s"))
                generation, _ = self._calls.pop(message["id"], (None, 0))
                if generation is not None:
                    generation.fail(error)
            case "info" | "stats" as reply if self._replies[reply]:
                future = self._replies[reply].popleft()
                if not future.done():
                    future.set_result(message)

    def _deliver(self, request_id: int, row: list[Any]) -> None:
        generation, index = self._calls.get(request_id, (None, 0))
        if generation is None:
            return  # aborted; the engine had sent this before it knew
        generation.push(index, row)
        if row[2] is not None:
            self._calls.pop(request_id, None)

    def _abort(self, request_id: int) -> None:
        if self._calls.pop(request_id, None) is not None and self._transport is not None:
            self._transport.write(encode_frame({"op": "abort", "id": request_id}))

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._transport is None or self._transport.is_closing():
            raise BackendUnavailable("the engine is not connected")
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._transport.abort()
            raise BackendUnavailable("the engine does not read")
        self._transport.write(encode_frame(message))

    def _lose(self, reason: str) -> None:
        calls, self._calls = self._calls, {}
        for generation, _ in calls.values():
            generation.lose(BackendUnavailable(reason))
        for waiting in self._replies.values():
            while waiting:
                future = waiting.popleft()
                if not future.done():
                    future.set_exception(BackendUnavailable(reason))
