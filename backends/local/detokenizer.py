"""Bytes to text while they come, byte-exact, ending where a stop string begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Detokenizer:
    """Turn one choice's bytes into text, piece by piece.

    What `push` and `end` return, joined, is the decoding of all bytes (invalid ones as U+FFFD), cut at the stop
    string that is complete first (of those that end at the same character, the longest). It depends on the bytes
    alone, not on how they were cut into pieces. Text is held back while it is an unfinished character or may still
    become a stop string, and not longer.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.num_decoded = 0
        """Characters decoded so far, held back or not."""
        self.num_released = 0
        """Characters given out so far."""
        self.stop: str | None = None
        """The stop string that was found; nothing more comes out."""

    @property
    def is_stopped(self) -> bool:
        """Tell whether a stop string was found."""
        return self.stop is not None

    def push(self, piece: bytes) -> str:
        """Take the next bytes and return the text that they make sure."""
        return self._advance(self._decoder.decode(piece))

    def end(self) -> str:
        """Return the rest of the text: there are no more bytes."""
        rest = self._advance(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        self.num_released += len(held)
        return rest + held

    def _advance(self, decoded: str) -> str:
        if self.is_stopped or not decoded:
            return ""
        self.num_decoded += len(decoded)
        text = self._held + decoded
        found = self._find_stop(text)
        if found is None:
            cut = len(text) - self._count_held(text)
            self._held = text[cut:]
        else:
            cut, self.stop = found
            self._held = ""
        self.num_released += cut
        return text[:cut]

    def _find_stop(self, text: str) -> tuple[int, str] | None:
        """Return where the stop string begins that is complete first, and the string."""
        found = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := text.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def _count_held(self, text: str) -> int:
        """Count the characters at the end that may begin a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
