"""The shadow of a text: what it says once look-alike and invisible characters are out of the way, with a way back.

Checks read the shadow, edits land on the original. The shadow is NFKC without the characters that Unicode calls
default-ignorable (zero-width, bidirectional, variation selectors, tags) and without the diacritics that melt into
no letter, which can be heaped on any. Inside JSON (tool arguments), escapes are
read as what they stand for. What belongs together (a letter and its combining marks, a surrogate pair, an escape)
is one segment: a span in the shadow always maps back to whole segments.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

NORMALISATION = f"1-{unicodedata.unidata_version}"
"""Part of the policy's hash: another normalisation may let another text through."""

IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's Default_Ignorable_Code_Point, as the inside of a character class."""

DIACRITICS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
"""The combining marks of no script in particular, as the inside of a character class."""

LATE_STARTERS = (
    "\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0cc2\u0cd5\u0cd6\u0d3e\u0d57\u0dcf\u0ddf\u102e\u1b35"
    "\u1161-\u1175\u11a8-\u11c2\U00011127\U0001133e\U00011357\U000113b8\U000113bb\U000113c2"
    "\U000113c5\U000113c7-\U000113c9\U000114b0\U000114ba\U000114bd\U000115af\U00011930\U0001611e-\U00016120\U00016129"
    "\U00016d63\U00016d67"
)
"""Characters of combining class 0 that may still melt into the one before them, as the inside of a character class."""

_IGNORABLE = re.compile(f"[{IGNORABLE}]")
_LATE = re.compile(f"[{LATE_STARTERS}]")
_DIACRITIC = re.compile(f"[{DIACRITICS}]")
_UNUSUAL = re.compile(f"[{IGNORABLE}{DIACRITICS}\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNFINISHED = re.compile(r"[\\\ud800-\udbff]")
_JSON_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
_OPEN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Shadow:
    """A text's shadow. `stable` counts the shadow characters that text to come cannot change any more.

    `starts` and `ends` give, for each shadow character, where its segment lies in the original; None where the
    shadow is the original. `heads` are the shadow indices at which segments begin; None where each is one long,
    but for what `_joins` the character before it.
    """

    text: str
    stable: int
    size: int
    starts: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Map a span of the shadow, not empty, to the whole segments of the original that it touches."""
        if self.starts is None or self.ends is None:
            return self.segment(start), self._end_of(end)
        return self.starts[start], self.ends[end - 1]

    def segment(self, index: int) -> int:
        """Return the shadow index at which the segment of a shadow character begins."""
        if self.heads is not None:
            return self.heads[bisect_right(self.heads, index) - 1] if index < len(self.text) else len(self.text)
        while 0 < index < len(self.text) and _joins(self.text[index]):
            index -= 1
        return index

    def offset(self, index: int) -> int:
        """Return where in the original a shadow character's segment begins; for the shadow's length, the end."""
        if index >= len(self.text):
            return self.size
        return self.segment(index) if self.starts is None else self.starts[index]

    def _end_of(self, end: int) -> int:
        while end < len(self.text) and _joins(self.text[end]):
            end += 1
        return end


def normalise(text: str, *, is_json: bool = False) -> Shadow:
    """Build the shadow of a text; with `is_json`, of text inside a JSON value."""
    if is_json and "\\" in text:
        return _build(text, _json_units(text))
    if text.isascii():
        return Shadow(text, stable=max(0, len(text) - 1), size=len(text))
    if _UNUSUAL.search(text) is None and unicodedata.is_normalized("NFKC", text):
        shadow = Shadow(text, stable=0, size=len(text))
        return Shadow(text, stable=shadow.segment(len(text) - 1), size=len(text))
    return _build(text, ((char, index, index + 1) for index, char in enumerate(text)))


def _json_units(text: str) -> Iterator[tuple[str, int, int]]:
    """Read escapes as one character each; one that is not complete yet stands for itself, as an open segment."""
    at = 0
    for found in _JSON_ESCAPE.finditer(text):
        yield from ((text[index], index, index + 1) for index in range(at, found.start()))
        letter = found.group()[1]
        char = chr(int(found.group()[2:], 16)) if letter == "u" else _SHORT_ESCAPES.get(letter, letter)
        yield char, found.start(), found.end()
        at = found.end()
    half = _OPEN_ESCAPE.search(text, at)
    end = half.start() if half else len(text)
    yield from ((text[index], index, index + 1) for index in range(at, end))
    if half:
        yield half.group(), half.start(), len(text)


def _build(text: str, units: Iterable[tuple[str, int, int]]) -> Shadow:
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    heads: list[int] = []
    stable = 0
    for segment, start, end in _segments(_paired(units)):
        melted = _melt(segment)
        if not _UNFINISHED.match(segment):  # what is unfinished may yet melt into the segment before it
            stable = len(starts)
        if not melted:
            continue
        heads.append(len(starts))
        pieces.append(melted)
        starts.extend([start] * len(melted))
        ends.extend([end] * len(melted))
    return Shadow(
        text="".join(pieces),
        stable=stable,
        size=len(text),
        starts=tuple(starts),
        ends=tuple(ends),
        heads=tuple(heads),
    )


def _paired(units: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Read two surrogates that stand for one character as that character."""
    high: tuple[str, int, int] | None = None
    for unit in units:
        char, _, end = unit
        if high is not None and "\udc00" <= char <= "\udfff":
            pair = (high[0] + char).encode("utf-16", "surrogatepass").decode("utf-16")
            yield pair, high[1], end
            high = None
            continue
        if high is not None:
            yield high
        high = unit if "\ud800" <= char <= "\udbff" else None
        if high is None:
            yield unit
    if high is not None:
        yield high


def _segments(units: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    segment, first, last = "", 0, 0
    for char, start, end in units:
        if _IGNORABLE.match(char):
            continue
        if segment and _joins(char):
            segment, last = segment + char, end
            continue
        if segment:
            yield segment, first, last
        segment, first, last = char, start, end
    if segment:
        yield segment, first, last


def _joins(char: str) -> bool:
    """Tell whether a character may melt into the one before it, so that the two cannot be judged apart."""
    if char < "\u0300":
        return False
    first = unicodedata.normalize("NFKD", char)[0]
    return unicodedata.combining(first) != 0 or _LATE.match(first) is not None


def _melt(segment: str) -> str:
    """Normalise one segment; a surrogate without its other half becomes U+FFFD."""
    if segment.isascii():
        return segment
    return _DIACRITIC.sub("", unicodedata.normalize("NFKC", _SURROGATE.sub("\ufffd", segment)))
