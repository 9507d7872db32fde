"""Score how much of an answer stands in the context that its request gave."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.options import read_share, read_words, refuse_unknown
from validators.roles import ROLES, plain_role

THRESHOLD = 0.7
SENTENCE_BAR = 0.6
"""The share of a sentence's words that must stand in the context for the sentence to count as supported."""
MIN_WORDS = 3
MAX_CHARS = 200_000
MAX_SENTENCES = 500

_SENTENCE = re.compile(
    r"[^.!?\n\u3002\uff01\uff1f]+(?:[.!?](?=\S)[^.!?\n\u3002\uff01\uff1f]+)*[.!?\u3002\uff01\uff1f]?"
)
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*%?|[^\W\d_]+(?:'[^\W\d_]+)?")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w-]+")
_ENDINGS = ("'s", "ing", "edly", "ed", "ies", "es", "ly", "s", "e")
_EMPTY_WORDS = (
    "the a an and or but if then of in on at to for from with by as is are was were be been it its this "
    "that these those he she they we you i his her their our your my not no do does did has have had can "
    "could will would may might should must so than there here which who what when where how why also "
    "according based context answer document documents text provided yes "
)
_EMPTY = frozenset(_EMPTY_WORDS.split())
"""Words that say nothing of what a sentence is about."""


@dataclass(frozen=True, slots=True)
class Support:
    """How many of an answer's sentences say something, and how many of those the context supports."""

    num_sentences: int
    num_supported: int

    @property
    def score(self) -> float:
        """Return the supported share; 1 where nothing was said."""
        return self.num_supported / self.num_sentences if self.num_sentences else 1.0


class Grounding:
    """Refuse an answer of which less than `threshold` of the sentences stand in the context.

    The context is the text of messages with `roles`, and `documents`. A sentence stands there when `SENTENCE_BAR` of
    its words and pairs of words do, and every number and name in it. That compares words: a sentence that puts true
    words together into a wrong claim passes, and one in other words of the same meaning does not. Answers to requests
    without context pass.
    """

    name = "grounding"
    version = "2"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset({Stage.OUTPUT})
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, *, threshold: float = THRESHOLD, roles: Collection[str] = ("system", "tool")) -> None:
        self._threshold = threshold
        self._roles = frozenset(roles)

    def applies(self, request: Request) -> bool:
        """Apply to requests that bring context."""
        return any(True for _ in context_of(request, self._roles))

    async def check(self, text: str, context: Context) -> Verdict:
        """Refuse an answer that is not supported, giving the score."""
        if context.request is None:
            return PASSED
        support = support_of(text, "\n".join(context_of(context.request, self._roles)))
        score = round(support.score, 4)
        if score >= self._threshold:
            return Verdict(Outcome.PASS, score=score)
        missing = support.num_sentences - support.num_supported
        reason = f"{missing} of its {support.num_sentences} sentences do not stand in the context"
        return Verdict(Outcome.BLOCK, reason=reason, score=score)


def create_grounding(options: Options) -> Grounding:
    """Build the check from `threshold` and `roles`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("threshold", "roles"))
    roles = read_words(options, "roles", ROLES, default=("system", "tool"))
    return Grounding(threshold=read_share(options, "threshold", default=THRESHOLD), roles=roles)


def support_of(answer: str, context: str) -> Support:
    """Count the sentences of an answer that a context supports; reads `MAX_CHARS` of each."""
    words = list(_words(context[:MAX_CHARS]))
    known = set(words) | set(pairwise(words))
    names = {_stem(name.lower()) for name in re.findall(r"\b[\w-]+", context[:MAX_CHARS])}
    judged = [
        one for sentence in _sentences(answer[:MAX_CHARS]) if (one := _is_supported(sentence, known, names)) is not None
    ]
    return Support(len(judged), sum(judged))


def context_of(request: Request, roles: Collection[str]) -> Iterator[str]:
    """Give the texts of a request that an answer may stand on."""
    for message in request.messages:
        if plain_role(str(message.get("role"))) in roles:
            yield from _texts(message.get("content"))
    yield from _texts(request.fields.get("documents"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in (value.get("text"), value.get("content")):
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _sentences(text: str) -> Iterator[str]:
    for count, match in enumerate(_SENTENCE.finditer(text)):
        if count >= MAX_SENTENCES:
            return
        yield match.group()


def _is_supported(sentence: str, known: set[Any], names: set[str]) -> bool | None:
    """Judge one sentence; None where it says too little to be judged."""
    words = list(_words(sentence))
    if len(words) < MIN_WORDS:
        return None
    strict = [word for word in words if word[0].isdigit()] + [_stem(name.lower()) for name in _NAME.findall(sentence)]
    if any(word not in known and word not in names for word in strict):
        return False
    pairs = list(pairwise(words))
    num_words, num_pairs = (sum(one in known for one in group) for group in (words, pairs))
    # A word in its place says more than a word: a quarter of the weight is on pairs, which a paraphrase loses first.
    return (num_words / len(words)) * 0.75 + (num_pairs / len(pairs)) * 0.25 >= SENTENCE_BAR


def _words(text: str) -> Iterator[str]:
    for word in _TOKEN.findall(text.lower()):
        if word in _EMPTY:
            continue
        if "\u3400" <= word[0] <= "\u9fff":
            yield from word
        elif word[0].isdigit():
            yield word.replace(",", "")
        else:
            yield _stem(word)


def _stem(word: str) -> str:
    """Take a regular English ending off a word that is long enough to have one."""
    if len(word) <= 4:
        return word
    for ending in _ENDINGS:
        if word.endswith(ending):
            return word[: -len(ending)]
    return word
