"""What a remote server's format has to know; connections, deadlines and errors are the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from backends.remote.sse import SseFrame
from orchestration.core.events import Delta, Event, Start
from orchestration.core.request import Request
from orchestration.core.value import value


@value
class Ask:
    """One request to the server: the path behind the base address, the body, and headers of its own.

    A path that begins with a slash stands behind the base address without its `/v1`. `dropped` names the fields that
    were left out, as this server does not take them. With `then`, the answer (read JSON) only makes the next request.
    """

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    then: Callable[[Any], Ask] | None = None


class WireFault(Exception):
    """An error that stands inside an answer that began well: its status, as far as it states one, and its body."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Decoder(Protocol):
    """Follow one answer. What it raises of `TypeError`, `LookupError`, ... means that it is not the format."""

    @property
    def start(self) -> Start:
        """Begin the answer, with what is known by the first content."""
        ...

    def is_end(self, frame: SseFrame) -> bool:
        """Tell whether this frame is the mark behind a stream's content."""
        ...

    def read_frame(self, frame: SseFrame) -> Sequence[Delta]:
        """Read one frame of a stream; raises `WireFault` for an error in it."""
        ...

    def read_whole(self, body: bytes) -> Sequence[Event]:
        """Read a whole answer, its end included; raises `WireFault` for an error in it."""
        ...

    def finish(self) -> Event:
        """Return the end of a stream; raises `BackendError` where the server gave none."""
        ...


class Wire(Protocol):
    """One format."""

    @property
    def title(self) -> str:
        """Name the format to a reader: `OpenAI's`."""
        ...

    @property
    def health_path(self) -> str:
        """Return a path that costs nothing to ask."""
        ...

    def ask(self, request: Request, *, backend: str) -> Ask:
        """Write a request; raises an error of the client's for what the format cannot say."""
        ...

    def decoder(self, request: Request, *, backend: str) -> Decoder:
        """Return the reader of one answer."""
        ...
