"""Patterns on a linear-time engine: a backtracking one stalls the event loop, even from a thread."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import re2

MAX_MEMORY_BYTES = 64 * 1024 * 1024

NOT_IN_WORD = r"[^\pL\pN\pM_]"


class Pattern:
    """Find what an expression matches, from left to right and without overlap.

    A match is the expression's first group where that took part, unless `takes_groups` is false, else the whole;
    an empty one is none. With `starts_word`, one that begins with a letter or digit counts only where no such
    character stands right before it. A `tail`, matched right where a match ends, is a match too: the rest of a run
    too long for the expression.
    Raises `ValueError` for an expression that the engine refuses.
    """

    def __init__(
        self, expression: str, *, tail: str | None = None, starts_word: bool = False, takes_groups: bool = True
    ) -> None:
        self._expression = compiled(expression)
        self._tail = compiled(tail) if tail else None
        self._has_group = takes_groups and self._expression.groups > 0
        self._starts_word = starts_word

    def find(self, text: str, *, start: int = 0, follows_match: bool = False) -> Iterator[tuple[int, int, bool]]:
        """Yield (start, end, is_tail) in characters; `follows_match` says that a match ended at `start`."""
        data = text.encode()
        chars = Chars(text, data)
        at = len(text[:start].encode()) if not text.isascii() else start
        while True:
            if follows_match and self._tail and (tail := self._tail.match(data, at)) and tail.end() > at:
                yield chars.index(at), chars.index(tail.end()), True
                at = tail.end()
                continue
            found = self._expression.search(data, at)
            if found is None:
                return
            first, last = found.span(1) if self._has_group and found.start(1) >= 0 else found.span()
            begin = chars.index(first)
            if begin == len(text):
                return
            is_inside = self._starts_word and begin > 0 and in_word(text[begin]) and in_word(text[begin - 1])
            if is_inside or first == last:
                at = first + len(text[begin].encode())
                follows_match = False
                continue
            yield begin, chars.index(last), False
            at, follows_match = last, True


class Chars:
    """Turn rising byte offsets into character indices, walking the text once."""

    def __init__(self, text: str, data: bytes) -> None:
        self._data = None if text.isascii() else data
        self._byte = 0
        self._char = 0

    def index(self, byte: int) -> int:
        """Return the index of the character that begins at a byte; the text's length at its end."""
        if self._data is None:
            return byte
        assert byte >= self._byte, "offsets rise"
        self._char += len(self._data[self._byte : byte].decode())
        self._byte = byte
        return self._char


def in_word(char: str) -> bool:
    """Tell whether a character is part of a word: a letter, a digit, a mark or an underscore."""
    return char == "_" or unicodedata.category(char)[0] in "LNM"


def alternation(bound: Sequence[str], free: Sequence[str]) -> str:
    """Write expressions as one, in upper or lower case; what is `bound` must be followed by what is not in a word.

    The first group holds what is found without what must follow it.
    """
    sides = [rf"({'|'.join(bound)})(?:{NOT_IN_WORD}|\z)"] if bound else []
    return "(?i)" + "|".join([*sides, *free])


def quote(text: str) -> str:
    """Write a text as an expression that matches it alone."""
    return str(re2.escape(text))


def compiled(expression: str) -> re2._Regexp:
    """Compile for the linear-time engine; raises `ValueError` for what it refuses."""
    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as exc:
        words = exc.args[0] if exc.args else exc
        told = words.decode("utf-8", "replace") if isinstance(words, bytes) else words
        raise ValueError(f"the pattern engine refuses it: {told}") from exc
