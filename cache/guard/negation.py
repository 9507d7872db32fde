"""Negation: a question and its denial are two questions, and so are a word and its opposite."""

from __future__ import annotations

from collections.abc import Iterator

from cache.guard.comparison import NEGATING_PREFIXES, NEGATING_SIZES, Comparison
from cache.guard.lexicon import Lexicon
from cache.guard.veto import Veto, against

_NONE: frozenset[str] = frozenset()


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
    if not pair.only_a or not pair.only_b:
        return None
    for one in sorted(pair.only_a):
        for other in sorted(lexicon.opposites.get(one, _NONE) & pair.only_b):
            return against("antonym", one, other)
    denied = [*_denied(pair.only_a, pair.only_b), *_denied(pair.only_b, pair.only_a)]
    return against("antonym", *min(denied)) if denied else None


def _denied(words: frozenset[str], others: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Give each word that denies one of the others by its prefix, with that one."""
    for word in words:
        for size in NEGATING_SIZES:
            if word[:size] in NEGATING_PREFIXES and word[size:] in others:
                yield word, word[size:]
