"""Keep a conversation off topics, and off the names of competitors, by lists of words."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.options import read, read_texts, refuse_unknown
from validators.phrases import phrase_recogniser
from validators.recognise import Recogniser, Recognisers


class Topics:
    """Find words of the banned topics, in their inflected forms; the reason names the topics.

    A list knows words, not what a text is about: choose words that have one meaning.
    """

    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)

    def __init__(self, topics: Sequence[Recogniser], *, name: str = "topics", replacement: str = "****") -> None:
        self.name = name
        self._topics = Recognisers(topics)
        self.longest_match: int | None = self._topics.longest
        self._replacement = replacement
        if next(self._topics.find(replacement), None) is not None:
            raise ValueError("replacement: must not hold a banned word")

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for every word found to be replaced."""
        found = list(self._topics.find(text, start=context.start))
        if not found:
            return PASSED
        spans = tuple(Span(one.start, one.end, self._replacement) for one in found)
        topics = ", ".join(sorted({one.name for one in found}))
        return Verdict(Outcome.REWRITE, spans, f"it is about a banned topic ({topics})")


def create_topics(options: Options) -> Topics:
    """Build the check from `topics`, a map from a topic's name to its words; raises `ValueError` naming the option."""
    refuse_unknown(options, ("topics", "replacement"))
    topics = read(options, "topics", dict)
    if not topics or not all(isinstance(name, str) for name in topics):
        raise ValueError("topics: must map a topic's name to its words, as in {politics: [election, ballot]}")
    built = [_recogniser(name, f"topics.{name}", read_texts(topics, name), inflected=True) for name in topics]
    return Topics(built, replacement=read(options, "replacement", str, default="****"))


def create_competitors(options: Options) -> Topics:
    """Build the check from `names`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("names", "replacement"))
    built = _recogniser("competitors", "names", read_texts(options, "names"), disguised=True)
    return Topics([built], name="competitors", replacement=read(options, "replacement", str, default="****"))


def _recogniser(
    name: str, option: str, words: Sequence[str], *, inflected: bool = False, disguised: bool = False
) -> Recogniser:
    try:
        return phrase_recogniser(name, words, inflected=inflected, disguised=disguised)
    except ValueError as exc:
        raise ValueError(f"{option}: {exc}") from exc
