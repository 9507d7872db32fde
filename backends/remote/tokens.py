"""What servers tell of a prompt's tokens: answers that are never a stream, and count for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import orjson

from backends.remote.sse import SseFrame
from backends.remote.wire import WireFault
from orchestration.core.errors import BackendError
from orchestration.core.events import Delta, Event, Finish, Part, Start, Usage


class TokenDecoder:
    """Read one answer by a function from its JSON to what the endpoint tells of it."""

    def __init__(self, read: Callable[[Any], dict[str, Any]], *, backend: str, model: str) -> None:
        self.start = Start(model=model, backend=backend)
        self._read = read
        self._backend = backend

    def is_end(self, frame: SseFrame) -> bool:
        """Find no end: there is no stream."""
        return False

    def read_frame(self, frame: SseFrame) -> NoReturn:
        """Raise `TypeError`: nobody asked for a stream."""
        raise TypeError("a stream")

    def read_whole(self, body: bytes) -> Sequence[Event]:
        """Read the answer: one payload, and an end that says that nothing was used."""
        answer = orjson.loads(body)
        if isinstance(answer, dict) and answer.get("error"):
            raise WireFault(502, answer)
        return [Delta(part=Part.PAYLOAD, data=self._read(answer)), Finish(usage=Usage())]

    def finish(self) -> NoReturn:
        """Raise `BackendError`: an answer that came as a stream has no end."""
        raise BackendError(f"{self._backend} ended its answer without saying why")
