"""Order and direction: from A to B is not from B to A, and A beats B is not B beats A."""

from __future__ import annotations

from collections.abc import Sequence

from cache.guard.comparison import Comparison
from cache.guard.lexicon import Lexicon
from cache.guard.reading import LETTER_A
from cache.guard.veto import Veto, against

_MARKERS = frozenset(
    {"from", "to", "into", "onto", "than", "before", "after", "by", "over", "under", "about", "need", "per", "for",
     "of", "in", "on", "at", "with", "without", "till", "until", "与", "从", "到", "比", "给", "被", "把"}
)  # fmt: skip
_SYMMETRIC = frozenset({"between", "and", "or", "versus", "vs", "with", "compare", "differenc", "和", "与", "跟", "或"})
_OPPOSITE = frozenset(
    frozenset(pair) for pair in (("from", "to"), ("from", "into"), ("before", "after"), ("over", "under"), ("从", "到"))
)


def turned_round(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto where a word changed its side: marked `from` here and `to` there, or two that changed places."""
    if pair.a.words == pair.b.words or _MARKERS.isdisjoint(pair.a.words) or _MARKERS.isdisjoint(pair.b.words):
        return None
    marks_a, marks_b = _marks(pair.a.words, lexicon), _marks(pair.b.words, lexicon)
    moved = []
    for word in sorted(marks_a.keys() & marks_b.keys()):
        one, other = marks_a[word], marks_b[word]
        if frozenset({one, other}) in _OPPOSITE:
            return against("direction", f"{one} {word}", f"{other} {word}")
        if one != other:
            moved.append(word)
    if pair.only_a or pair.only_b or _is_symmetric(pair):
        return None
    return _exchanged(moved, marks_a, marks_b)


def _exchanged(moved: Sequence[str], marks_a: dict[str, str], marks_b: dict[str, str]) -> Veto | None:
    """Veto two words of which each stands as the other stood."""
    for place, one in enumerate(moved):
        for other in moved[place + 1 :]:
            if marks_a[one] == marks_b[other] and marks_b[one] == marks_a[other]:
                return against("order", one, other)
    return None


def _is_symmetric(pair: Comparison) -> bool:
    has_marker = any(word in _SYMMETRIC for word in pair.a.words)
    return has_marker and not any(word in ("from", "to", "than", "比", "从", "到") for word in pair.a.words)


def _marks(words: Sequence[str], lexicon: Lexicon) -> dict[str, str]:
    """Give each loud word the marker that stands right before it, as far as quiet words let it; others have none.

    A letter that names one of several (plan B) has its noun's.
    """
    marks: dict[str, str] = {}
    marker, nouns = "", ""
    for word in words:
        if word in _MARKERS:
            marker = word
        elif word not in lexicon.quiet:
            marker = marker or (nouns if _is_letter(word) else "")
            marks.setdefault(word, marker)
            marker, nouns = "", marker
    return marks


def _is_letter(word: str) -> bool:
    return (len(word) == 1 and word.isascii()) or word == LETTER_A
