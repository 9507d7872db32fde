"""What one request gave: the times of its pieces, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Piece = tuple[float, bytes]
"""When a piece of a reply's body came, in seconds of the monotonic clock, and its bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request from its first byte sent to its end; times are seconds of the monotonic clock.

    `token_times` are those of the events that held text, each of one or more tokens. `error` is None for an answer
    that came to its proper end: its finish reason and, over HTTP, `[DONE]`.
    """

    begun_s: float
    ended_s: float
    token_times: Sequence[float] = ()
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None
    is_from_cache: bool = False

    def read(self) -> Answer:
        """Return itself: it has been read."""
        return self

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token."""
        return self.token_times[0] - self.begun_s if self.token_times else None

    @property
    def tpot_s(self) -> float | None:
        """Return the time per token after the first; None below two tokens."""
        if self.output_tokens < 2 or len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Return the time from the request to its end."""
        return self.ended_s - self.begun_s


def read_stream(pieces: Sequence[Piece], *, begun_s: float, ended_s: float, is_from_cache: bool) -> Answer:
    """Read a stream of OpenAI's completion chunks; done after the run, so that reading disturbs no measurement.

    Tokens are counted by the usage that the server sent, and by events where it sent none.
    """
    times: list[float] = []
    usage: dict[str, Any] = {}
    reason = error = None
    is_done = False
    for at_s, data in _events(pieces):
        if data == b"[DONE]":
            is_done = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            error = f"an event that is no JSON: {data[:80]!r}"
            break
        if "error" in event:
            error = f"an error in the stream: {event['error']}"[:200]
            break
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                times.append(at_s)
    if error is None and not (is_done and reason):
        error = "the stream ended early"
    return Answer(
        begun_s=begun_s,
        ended_s=ended_s,
        token_times=times,
        output_tokens=usage.get("completion_tokens") or len(times),
        prompt_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        error=error,
        is_from_cache=is_from_cache,
    )


def _events(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return each event's data with the time of the piece that completed it."""
    found: list[Piece] = []
    rest = b""
    for at_s, data in pieces:
        *whole, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in whole:
            lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append((at_s, b"\n".join(lines)))
    return found
