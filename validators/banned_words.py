"""Find words and phrases that must not be said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.options import read, refuse_unknown
from validators.patterns import Pattern, alternation, in_word, quote
from validators.shadow import normalise

LONGEST_GAP = 4
"""Blanks that may stand between two words of a phrase."""


class BannedWords:
    """Find any of `words`, in upper or lower case; with `whole_words` not inside longer words.

    A blank inside a phrase stands for one to four blanks of any sort. Raises `ValueError` for an empty word, for
    too many of them, and for a replacement that holds one.
    """

    name = "banned_words"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)

    def __init__(self, words: Sequence[str], *, whole_words: bool = True, replacement: str = "****") -> None:
        phrases = sorted({normalise(word.strip()).text for word in words}, key=lambda phrase: (-len(phrase), phrase))
        if not phrases or not phrases[-1]:
            raise ValueError("words: must be a list of words, none of them empty")
        self.longest_match: int | None = max(_longest(phrase) for phrase in phrases)
        self._replacement = replacement
        try:
            self._pattern = Pattern(_expression(phrases, whole_words=whole_words), starts_word=whole_words)
        except ValueError as exc:
            raise ValueError(f"words: {exc}") from exc
        if next(self._pattern.find(normalise(replacement).text), None):
            raise ValueError("replacement: must not hold a banned word")

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for every banned word to be replaced."""
        found = self._pattern.find(text, start=context.start, follows_match=context.follows_match)
        spans = tuple(Span(start, end, self._replacement) for start, end, _ in found)
        return Verdict(Outcome.REWRITE, spans, "it holds a banned word") if spans else PASSED


def create_banned_words(options: Options) -> BannedWords:
    """Build the check from `words`, `whole_words` and `replacement`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("words", "whole_words", "replacement"))
    words = read(options, "words", list, default=[])
    if not all(isinstance(word, str) for word in words):
        raise ValueError("words: must be a list of texts")
    return BannedWords(
        words,
        whole_words=read(options, "whole_words", bool, default=True),
        replacement=read(options, "replacement", str, default="****"),
    )


def _longest(phrase: str) -> int:
    pieces = re.split(r"\s+", phrase)
    return sum(map(len, pieces)) + LONGEST_GAP * (len(pieces) - 1)


def _expression(phrases: Sequence[str], *, whole_words: bool) -> str:
    """Write an alternation in the order of the phrases; of whole words, one that ends within a word is bound."""
    bound = [_literal(phrase) for phrase in phrases if whole_words and in_word(phrase[-1])]
    free = [_literal(phrase) for phrase in phrases if not (whole_words and in_word(phrase[-1]))]
    return alternation(bound, free)


def _literal(phrase: str) -> str:
    return rf"\s{{1,{LONGEST_GAP}}}".join(quote(piece) for piece in re.split(r"\s+", phrase))
