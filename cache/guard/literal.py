"""Quoted strings and code: what is given letter by letter has to be the same letters."""

from __future__ import annotations

from cache.guard.comparison import Comparison
from cache.guard.lexicon import Lexicon
from cache.guard.veto import Veto, against, told


def differing_quotes(pair: Comparison, _lexicon: Lexicon) -> Veto | None:
    """Veto quoted texts of which each side has one that the other has not."""
    return _differing("quote", pair.a.literals.quotes, pair.b.literals.quotes)


def differing_symbols(pair: Comparison, _lexicon: Lexicon) -> Veto | None:
    """Veto operators, flags and dotted or underscored names that differ."""
    return _differing("code", pair.a.literals.symbols, pair.b.literals.symbols)


def _differing(reason: str, a: frozenset[str], b: frozenset[str]) -> Veto | None:
    return against(reason, told(a - b), told(b - a)) if a - b and b - a else None
