"""Numbers, units, dates, versions and ids: what is counted must be the same on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from cache.guard.comparison import Comparison
from cache.guard.lexicon import Lexicon
from cache.guard.reading import Quantity
from cache.guard.veto import Veto, against

_YEARS = range(1900, 2101)


def differing_amounts(pair: Comparison, _lexicon: Lexicon) -> Veto | None:
    """Veto amounts that the other side does not have; a lone `one` counts nothing."""
    if pair.a.quantities == pair.b.quantities:
        return None
    left_a, left_b = _unmatched(pair.a.quantities, pair.b.quantities)
    left_a, left_b = _counting(left_a), _counting(left_b)
    if not left_a and not left_b:
        return None
    digits_a, digits_b = (sorted(word for word in one.words if word.startswith("#")) for one in (pair.a, pair.b))
    reason = _reason(left_a, left_b)
    is_unit = reason == "number" and digits_a == digits_b  # the same digits, of something else
    return against("unit" if is_unit else reason, _told(left_a), _told(left_b))


def differing_ids(pair: Comparison, _lexicon: Lexicon) -> Veto | None:
    """Veto names with digits in them (`b1`, `sha256`) that differ."""
    ids_a = {word for word in pair.only_a if _is_id(word)}
    ids_b = {word for word in pair.only_b if _is_id(word)}
    return against("id", " ".join(sorted(ids_a)), " ".join(sorted(ids_b))) if ids_a and ids_b else None


def _unmatched(a: Sequence[Quantity], b: Sequence[Quantity]) -> tuple[list[Quantity], list[Quantity]]:
    left_b = list(b)
    left_a = []
    for quantity in a:
        match = next((other for other in left_b if _agree(quantity, other)), None)
        if match is None:
            left_a.append(quantity)
        else:
            left_b.remove(match)
    return left_a, left_b


def _agree(one: Quantity, other: Quantity) -> bool:
    if one.value == other.value:
        return one.dimension == other.dimension or None in (one.dimension, other.dimension)
    return False


def _counting(quantities: Sequence[Quantity]) -> list[Quantity]:
    return [one for one in quantities if one.value != "1" or one.dimension is not None]


def _reason(a: Sequence[Quantity], b: Sequence[Quantity]) -> str:
    both = [*a, *b]
    if {one.dimension for one in both} == {"percent", "points"}:
        return "percent"
    if (
        a
        and b
        and {one.dimension for one in a} != {one.dimension for one in b}
        and None not in {one.dimension for one in both}
    ):
        return "unit"
    if all(one.value.isdecimal() and int(one.value) in _YEARS and one.dimension is None for one in both):
        return "date"
    if any("/" in one.value or "-" in one.value for one in both):
        return "date"
    if any(":" in one.value or (one.dimension or "").startswith("clock") for one in both):
        return "time"
    return "version" if all("." in one.value and one.dimension is None for one in both) else "number"


def _told(quantities: Sequence[Quantity]) -> str:
    return " ".join(sorted(f"{one.value} {one.dimension or ''}".strip() for one in quantities))


def _is_id(word: str) -> bool:
    return not word.isalpha() and not word.startswith("#") and any(letter.isdecimal() for letter in word)
