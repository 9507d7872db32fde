"""Answers of a backend that speaks the client's dialect, written as they came while nobody changed them."""

from __future__ import annotations

from typing import Protocol, assert_never

from gateway.dialects.answer import Answer
from gateway.dialects.dialect import StreamEncoder
from orchestration.core import Delta, Event, Finish, Start
from orchestration.core.errors import LaminaError


def relayed_body(answer: Answer, dialect: str) -> bytes | None:
    """Return a whole answer's body as it came, or None where it was not this dialect's or is not the same any more."""
    finish = answer.finish
    if finish is None or finish.raw is None or finish.dialect != dialect or finish.covers != len(answer.deltas):
        return None
    is_unchanged = all(delta.raw == b"" and delta.dialect == dialect for delta in answer.deltas)
    return finish.raw if is_unchanged else None


class Resumable(StreamEncoder, Protocol):
    """Write a stream, also from the middle on."""

    def go_on_from(self, frames: bytes) -> None:
        """Go on under the id, time and model of these frames, which were the stream's first."""
        ...


class RelayedStream:
    """Write frames as they came, byte for byte, up to the first event that has none; from there on, write anew.

    Whatever writes anew hears of all events before, so that it goes on in the state (the open block, the choices
    that have begun) and under the id that the client has seen. Implements `StreamEncoder`.
    """

    def __init__(self, encoder: Resumable, *, dialect: str) -> None:
        self._encoder = encoder
        self._dialect = dialect
        self._is_relaying = True
        self._seen: list[Event] = []
        self._pending: list[Delta] = []
        self._first = b""
        self._has_mark = False

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event."""
        if not self._is_relaying:
            return self._encoder.encode(event)
        match event:
            case Start():
                self._seen.append(event)
                return b""
            case Delta():
                return self._relay(event) if self._is_own(event) else self._write_anew(event)
            case Finish():
                is_whole = self._is_own(event) and event.covers == len(self._pending)
                return self._relay_end(event) if is_whole else self._write_anew(event)
            case _:
                assert_never(event)

    def encode_error(self, error: LaminaError) -> bytes:
        """Return the frames that end a stream which broke off."""
        return self._encoder.encode_error(error)

    def encode_keep_alive(self) -> bytes:
        """Return a sign of life."""
        return self._encoder.encode_keep_alive()

    def encode_end(self) -> bytes:
        """Return the mark behind the last event, where it did not come with that one."""
        return b"" if self._has_mark else self._encoder.encode_end()

    def _is_own(self, event: Delta | Finish) -> bool:
        return event.raw is not None and event.dialect == self._dialect

    def _relay(self, event: Delta) -> bytes:
        if event.raw == b"":
            self._pending.append(event)
            return b""
        if event.covers != len(self._pending) + 1:
            return self._write_anew(event)
        self._seen += [*self._pending, event]
        self._pending = []
        assert event.raw is not None, "it is its own"
        self._first = self._first or event.raw
        return event.raw

    def _relay_end(self, event: Finish) -> bytes:
        assert event.raw is not None, "it is its own"
        mark = self._encoder.encode_end().split(b"\n", 1)[0]
        self._has_mark = bool(mark) and event.raw.rstrip(b"\n").rpartition(b"\n\n")[2].startswith(mark)
        return event.raw

    def _write_anew(self, event: Event) -> bytes:
        self._is_relaying = False
        for seen in self._seen:
            self._encoder.encode(seen)
        if self._first:
            self._encoder.go_on_from(self._first)
        frames = [self._encoder.encode(pending) for pending in self._pending]
        self._seen, self._pending = [], []
        return b"".join([*frames, self._encoder.encode(event)])
