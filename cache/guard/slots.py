"""One sentence with another word in it: substitution, and qualifiers that only one side has."""

from __future__ import annotations

from collections.abc import Sequence

from cache.guard.comparison import Comparison
from cache.guard.lexicon import Lexicon
from cache.guard.veto import Veto, against

_MAX_SPAN = 4
_MIN_SHARED = 2
_MAX_CHANGES = 3
_MAX_ALIGNED = 10
_NONE: frozenset[str] = frozenset()


def substituted(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto sentences that are the same but for a short stretch of words, neither of which the other side says."""
    num_shared = pair.num_before + pair.num_after
    longest = max(len(pair.span_a), len(pair.span_b))
    if not pair.span_a or not pair.span_b or num_shared < min(_MIN_SHARED, longest):
        return None
    new_a, new_b = _new(pair.span_a, pair.only_a), _new(pair.span_b, pair.only_b)
    if not new_a or not new_b or _are_akin(new_a, new_b, lexicon):
        return None
    if longest <= _MAX_SPAN or _is_aligned(pair):
        return against("substitution", " ".join(new_a), " ".join(new_b))
    return None


def qualified(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto words that were only put in, unless as a clause of their own before the question."""
    loud_a, loud_b = _loud(pair.span_a, lexicon), _loud(pair.span_b, lexicon)
    if bool(loud_a) == bool(loud_b) or pair.num_before + pair.num_after < _MIN_SHARED:
        return None
    longer, span, loud, other = (
        (pair.a, pair.span_a, loud_a, pair.span_b) if loud_a else (pair.b, pair.span_b, loud_b, pair.span_a)
    )
    new = _new(loud, pair.only_a | pair.only_b)
    if other and (max(len(span), len(other)) > _MAX_SPAN or not any(word in lexicon.kinds for word in new)):
        return None  # quiet words were exchanged as well: only a word that answers depend on counts (my, my child's)
    if not new:
        return None
    if pair.num_before == 0 and len(span) in longer.breaks:
        return None
    return against("qualifier", " ".join(new), "")


def _loud(span: Sequence[str], lexicon: Lexicon) -> list[str]:
    return [word for word in span if word not in lexicon.quiet and word not in lexicon.negators]


def _new(span: Sequence[str], only: frozenset[str]) -> list[str]:
    return [word for word in span if word in only and word != "#1"]


def _are_akin(a: Sequence[str], b: Sequence[str], lexicon: Lexicon) -> bool:
    """Tell whether every word of either side has one on the other that may mean the same."""
    return all(lexicon.akin.get(word, _NONE).intersection(b) for word in a) and all(
        lexicon.akin.get(word, _NONE).intersection(a) for word in b
    )


def _is_aligned(pair: Comparison) -> bool:
    """Tell whether two spans of one length differ in a few places only, most words standing where they stood."""
    if len(pair.span_a) != len(pair.span_b) or len(pair.span_a) > _MAX_ALIGNED:
        return False
    changes = [place for place, word in enumerate(pair.span_a) if word != pair.span_b[place]]
    num_kept = pair.num_before + pair.num_after + len(pair.span_a) - len(changes)
    return len(changes) <= _MAX_CHANGES and num_kept > len(changes)
