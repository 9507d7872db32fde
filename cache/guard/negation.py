"""Negation: a question and its denial are two questions, and so are a word and its opposite."""

from __future__ import annotations

from cache.guard.comparison import Comparison, is_negated
from cache.guard.lexicon import Lexicon
from cache.guard.veto import Veto, against


def differing_parity(pair: Comparison, _lexicon: Lexicon) -> Veto | None:
    """Veto where one side denies once more, unless the other side does so by a verb (`fail`, `avoid`)."""
    a, b = pair.a, pair.b
    if (a.num_denials - b.num_denials) % 2 == 0:
        return None
    plain = b if a.num_denials % 2 else a
    if plain.implicit_denials - (a if plain is b else b).implicit_denials:
        return None
    return against("negation", a.num_denials, b.num_denials)


def opposite_words(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto antonyms that stand against each other, by the list or by a prefix (`safe`, `unsafe`)."""
    for one in sorted(pair.only_a):
        for other in sorted(lexicon.opposites.get(one, frozenset()) & pair.only_b):
            return against("antonym", one, other)
        for other in sorted(pair.only_b):
            if is_negated(one, other) or is_negated(other, one):
                return against("antonym", one, other)
    return None
