"""Recognisers side by side: what each finds, accepted by code of its own, from left to right and without overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import re2

from validators.patterns import Chars, compiled

Accept = Callable[[str, int, int], bool]
"""Tell whether characters start to end of a text are meant; may look at one character to either side."""


def always(_text: str, _start: int, _end: int) -> bool:
    """Accept whatever the expression matches."""
    return True


@dataclass(frozen=True, slots=True)
class Recogniser:
    """What one sort of thing looks like.

    A match is the expression's first group where that took part, else the whole; `longest` bounds it in characters.
    A text that holds none of the characters of `needs` holds no such thing; an empty `needs` says nothing.
    """

    name: str
    expression: str
    longest: int
    accept: Accept = always
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """Characters `start` to `end` (exclusive), and the recogniser's name."""

    start: int
    end: int
    name: str


class Recognisers:
    """Find what any of some recognisers accepts, in time linear in the text.

    Whether something is found at a place depends on the text from there on and on one character before: so the same
    is found however the text is cut. Of two at one place the earlier recogniser wins.
    Raises `ValueError` for an expression that the engine refuses.
    """

    def __init__(self, recognisers: Sequence[Recogniser]) -> None:
        self._compiled = [(one, compiled(one.expression)) for one in recognisers]
        self.longest = max((one.longest for one in recognisers), default=0)

    def find(self, text: str, *, start: int = 0) -> Iterator[Found]:
        """Yield what is found from `start` on."""
        data = text.encode()
        at = start if text.isascii() else len(text[:start].encode())
        cursors = [_Cursor(one, engine, text, data) for one, engine in self._compiled if _may_hold(one, text)]
        waiting = [cursor for cursor in cursors if cursor.seek(at)]
        while waiting:
            first = min(waiting, key=lambda cursor: cursor.begin_byte)  # the first of equals
            yield first.found()
            at = first.end_byte
            waiting = [cursor for cursor in waiting if cursor.begin_byte >= at or cursor.seek(at)]


class _Cursor:
    """One recogniser's next finding; byte offsets rise from one `seek` to the next."""

    def __init__(self, recogniser: Recogniser, engine: re2._Regexp, text: str, data: bytes) -> None:
        self._recogniser = recogniser
        self._engine = engine
        self._has_group = engine.groups > 0
        self._text = text
        self._data = data
        self._chars = Chars(text, data)
        self.begin_byte = 0
        self.end_byte = 0
        self._span = (0, 0)

    def seek(self, at: int) -> bool:
        """Go to the first thing that begins at byte `at` or later; False where there is none."""
        while (match := self._engine.search(self._data, at)) is not None:
            first, last = match.span(1) if self._has_group and match.start(1) >= 0 else match.span()
            begin = self._chars.index(first)
            end = begin + len(self._data[first:last].decode())
            if self._recogniser.accept(self._text, begin, end):
                self.begin_byte, self.end_byte, self._span = first, last, (begin, end)
                return True
            at = first + len(self._text[begin].encode())
        return False

    def found(self) -> Found:
        return Found(*self._span, self._recogniser.name)


def _may_hold(recogniser: Recogniser, text: str) -> bool:
    return not recogniser.needs or any(char in text for char in recogniser.needs)
