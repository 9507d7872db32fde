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
from typing import NamedTuple

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
    escapes = _escapes(text) if is_json and "\\" in text else []
    if not escapes:
        if text.isascii():
            return Shadow(text, stable=max(0, len(text) - 1), size=len(text))
        if _UNUSUAL.search(text) is None and unicodedata.is_normalized("NFKC", text):
            shadow = Shadow(text, stable=0, size=len(text))
            return Shadow(text, stable=shadow.segment(len(text) - 1), size=len(text))
    builder = _Builder(text)
    at = 0
    for unit in _paired(_unusual(text, escapes)):
        builder.add_plain(at, unit.start)
        builder.add(unit)
        at = unit.end
    builder.add_plain(at, len(text))
    return builder.build()


class _Unit(NamedTuple):  # made for every unusual character: a frozen dataclass takes twice as long
    """A character that is not taken over as it stands, and the stretch of the original that it was read from."""

    char: str
    start: int
    end: int


class _Builder:
    """Put a shadow together from left to right: plain stretches at once, everything else segment by segment."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._heads: list[int] = []
        self._stable = 0
        self._open: _Unit | None = None  # the segment that what follows may still join

    def add_plain(self, start: int, end: int) -> None:
        """Take over a stretch in which every character stands for itself and joins none before it."""
        if start == end:
            return
        self._close()
        last = end - 1
        self._heads.extend(range(len(self._starts), len(self._starts) + last - start))
        self._starts.extend(range(start, last))
        self._ends.extend(range(start + 1, end))
        self._pieces.append(self._text[start:last])
        self._open = _Unit(self._text[last], last, end)

    def add(self, unit: _Unit) -> None:
        """Take a character that is unusual, joining it to the segment before it where it may melt into that."""
        if _IGNORABLE.match(unit.char):
            return
        if self._open is not None and _joins(unit.char):
            self._open = _Unit(self._open.char + unit.char, self._open.start, unit.end)
            return
        self._close()
        self._open = unit

    def build(self) -> Shadow:
        """Return the shadow."""
        self._close()
        return Shadow(
            text="".join(self._pieces),
            stable=self._stable,
            size=len(self._text),
            starts=tuple(self._starts),
            ends=tuple(self._ends),
            heads=tuple(self._heads),
        )

    def _close(self) -> None:
        segment, self._open = self._open, None
        if segment is None:
            return
        if not _UNFINISHED.match(segment.char):  # what is unfinished may yet melt into the segment before it
            self._stable = len(self._starts)
        melted = _melt(segment.char)
        if not melted:
            return
        self._heads.append(len(self._starts))
        self._pieces.append(melted)
        self._starts.extend([segment.start] * len(melted))
        self._ends.extend([segment.end] * len(melted))


def _escapes(text: str) -> list[_Unit]:
    """List the escapes of a JSON text; one that is not complete yet stands for itself."""
    found: list[_Unit] = []
    end = 0
    for match in _JSON_ESCAPE.finditer(text):
        letter, end = match.group()[1], match.end()
        char = chr(int(match.group()[2:], 16)) if letter == "u" else _SHORT_ESCAPES.get(letter, letter)
        found.append(_Unit(char, match.start(), end))
    half = _OPEN_ESCAPE.search(text, end)
    return [*found, _Unit(half.group(), half.start(), len(text))] if half else found


def _unusual(text: str, escapes: Iterable[_Unit]) -> Iterator[_Unit]:
    """Give, in order, the escapes and between them the characters that do not stand for themselves."""
    unusual = {char for char in set(text) if char > "\x7f" and _is_unusual(char)}
    at = 0
    for escape in (*escapes, _Unit("", len(text), len(text))):
        if unusual:
            stretch = enumerate(text[at : escape.start], start=at)
            yield from (_Unit(char, index, index + 1) for index, char in stretch if char in unusual)
        if escape.char:
            yield escape
        at = escape.end


def _paired(units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Read two surrogates that stand for one character as that character."""
    high: _Unit | None = None
    for unit in units:
        if high is not None and unit.start == high.end and "\udc00" <= unit.char <= "\udfff":
            pair = (high.char + unit.char).encode("utf-16", "surrogatepass").decode("utf-16")
            yield _Unit(pair, high.start, unit.end)
            high = None
            continue
        if high is not None:
            yield high
        high = unit if "\ud800" <= unit.char <= "\udbff" else None
        if high is None:
            yield unit
    if high is not None:
        yield high


def _is_unusual(char: str) -> bool:
    return _UNUSUAL.match(char) is not None or _joins(char) or not unicodedata.is_normalized("NFKC", char)


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
