"""What a wire format has to know; the rest of the HTTP side is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.dialects.answer import Answer
from orchestration.core import Event, Request
from orchestration.core.errors import LaminaError

NO_HEADERS: Mapping[bytes, bytes] = {}


@dataclass(frozen=True, slots=True)
class Reply:
    """What an answer carries besides its events: the call's id, Unix time in seconds, and what was asked."""

    call_id: str
    created: int
    request: Request


class StreamEncoder(Protocol):
    """Write one call's events as frames of a stream; keeps what must be the same in all of them."""

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event, whole; nothing where the event has none."""
        ...

    def encode_error(self, error: LaminaError) -> bytes:
        """Return the frames that end a stream which broke off after its head was sent."""
        ...

    def encode_keep_alive(self) -> bytes:
        """Return what tells a client that the answer is still coming."""
        ...

    def encode_end(self) -> bytes:
        """Return what follows the last event's frames."""
        ...


class Dialect(Protocol):
    """One endpoint's wire format."""

    @property
    def name(self) -> str:
        """Name the format as `Request.dialect` and `Delta.dialect` do."""
        ...

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check a body and return the request; raises `InvalidRequest` that names the field.

        Some formats have fields in the headers, too.
        """
        ...

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write a whole answer."""
        ...

    def stream(self, reply: Reply) -> StreamEncoder | None:
        """Return the encoder of one stream, or None where this format has no streams."""
        ...
