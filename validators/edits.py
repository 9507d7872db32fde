"""Edits on a text: ordered, apart, and applied to any stretch of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from validators.check import Span
from validators.shadow import Shadow


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters `start` to `end` (exclusive) of the original, and what takes their place.

    Of two edits that begin at one place, the lower `rank` says what takes the place of both.
    """

    start: int
    end: int
    replacement: str
    rank: int = 0


def on_original(spans: Iterable[Span], shadow: Shadow, *, rank: int = 0) -> list[Edit]:
    """Map spans of a shadow to edits of the original."""
    return [Edit(*shadow.original(span.start, span.end), span.replacement, rank) for span in spans]


def merged(edits: Iterable[Edit]) -> list[Edit]:
    """Order edits and join those that overlap; the one that begins first says what takes their place."""
    result: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.rank)):
        if result and edit.start < result[-1].end:
            result[-1] = replace(result[-1], end=max(result[-1].end, edit.end))
        else:
            result.append(edit)
    return result


def edited(text: str, edits: Sequence[Edit], *, start: int = 0, end: int | None = None) -> str:
    """Return a stretch of the text with merged edits applied; a replacement stands where its edit begins."""
    end = len(text) if end is None else end
    pieces: list[str] = []
    at = start
    for edit in edits:
        if edit.end <= start or edit.start >= end:
            continue
        pieces.append(text[at : max(at, edit.start)])
        if edit.start >= start:
            pieces.append(edit.replacement)
        at = min(edit.end, end)
    pieces.append(text[at:end])
    return "".join(pieces)
