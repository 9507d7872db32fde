"""Members of one kind: days, countries, programs, customers; and names that no list knows."""

from __future__ import annotations

from cache.guard.comparison import Comparison, is_typo
from cache.guard.lexicon import Lexicon
from cache.guard.reading import Reading
from cache.guard.veto import Veto, against, told

_ASKS = {f"{word}{ending}": word for word in ("where", "when", "who") for ending in ("", "s", "'s")}
"""Words that ask for a place, a time, a person; they are silent elsewhere, since many sentences do without them."""
_ASKS_IN_CHINESE = frozenset({"哪里", "什么时候", "谁"})


def other_member(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto two members of one contrast set, each on one side only: Monday against Tuesday, tenant against landlord."""
    for one in sorted(pair.only_a):
        kinds = lexicon.kinds.get(one)
        if not kinds:
            continue
        for other in sorted(pair.only_b):
            shared = kinds & lexicon.kinds.get(other, frozenset())
            if shared:
                return against(lexicon.reasons[min(shared)], one, other)
    return None


def other_small_word(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto small words that mostly say nothing and here say all: when against where, and up in the place of down."""
    if len(pair.span_a) == len(pair.span_b) == 1:
        (one,), (other,) = pair.span_a, pair.span_b
        if other in lexicon.opposites.get(one, ()):
            return against("antonym", one, other)
    asked_a = _asked(pair.a)
    asked_b = _asked(pair.b) if asked_a else asked_a
    if asked_a - asked_b and asked_b - asked_a:
        return against("scope", told(asked_a - asked_b), told(asked_b - asked_a))
    return None


def _asked(reading: Reading) -> frozenset[str]:
    """Return which of these are asked: a place, a time, a person."""
    if not _ASKS.keys().isdisjoint(reading.tokens):
        return frozenset(_ASKS[token] for token in reading.tokens if token in _ASKS)
    return _ASKS_IN_CHINESE.intersection(reading.words)


def other_name(pair: Comparison, lexicon: Lexicon) -> Veto | None:
    """Veto where each side names somebody or something that the other does not."""
    names_a = pair.a.literals.names - frozenset(pair.b.words)
    names_b = pair.b.literals.names - frozenset(pair.a.words)
    if not names_a or not names_b or _is_spelt_out(names_a, pair.b.words) or _is_spelt_out(names_b, pair.a.words):
        return None
    if any(is_typo(one, other, lexicon) for one in names_a for other in names_b):
        return None
    return against("entity", told(names_a), told(names_b))


def _is_spelt_out(names: frozenset[str], words: tuple[str, ...]) -> bool:
    """Tell whether a name is the initials of words that stand in a row."""
    initials = "".join(word[0] for word in words if word)
    return any(len(name) > 2 and name in initials for name in names)
