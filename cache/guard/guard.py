"""The difference guard: what speaks, in two questions' own words, against one answer for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cache.guard.amounts import differing_amounts, differing_ids
from cache.guard.comparison import Comparison, compare
from cache.guard.contrast import other_member, other_name, other_small_word
from cache.guard.lexicon import Lexicon, load_lexicon
from cache.guard.literal import differing_quotes, differing_symbols
from cache.guard.negation import differing_parity, opposite_words
from cache.guard.order import turned_round
from cache.guard.reading import Reading, read
from cache.guard.slots import qualified, substituted
from cache.guard.veto import Veto

GUARD_VERSION = 4
"""Counts up whenever a pair may get another verdict: a rule or a list of words has changed."""

Rule = Callable[[Comparison, Lexicon], Veto | None]

RULES: tuple[Rule, ...] = (
    differing_quotes,
    differing_symbols,
    differing_amounts,
    differing_ids,
    differing_parity,
    opposite_words,
    other_member,
    other_small_word,
    other_name,
    turned_round,
    substituted,
    qualified,
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Compare questions by rules; each says why it would not serve one's answer to the other.

    The verdict does not depend on which of the two came first, nor on anything but the two texts.
    """

    lexicon: Lexicon
    rules: tuple[Rule, ...] = RULES

    def __call__(self, a: str, b: str) -> Veto | None:
        """Return the first rule's veto, or None where no rule objects."""
        return self.judge(self.compare(self.read(a), self.read(b)))

    def read(self, text: str) -> Reading:
        """Read a text once, for several comparisons."""
        return read(text, self.lexicon)

    def compare(self, a: Reading, b: Reading) -> Comparison:
        """Lay two readings side by side."""
        return compare(a, b, self.lexicon)

    def judge(self, pair: Comparison) -> Veto | None:
        """Return the first rule's veto on a comparison."""
        for rule in self.rules:
            veto = rule(pair, self.lexicon)
            if veto is not None:
                return veto
        return None


def load_guard() -> Guard:
    """Make the guard of this version, with its lists of words."""
    return Guard(load_lexicon())
