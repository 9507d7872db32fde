"""Score a text for orders to the model that its author has no right to give."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.disguise import decoded, plain, undisguised
from validators.injection_rules import FAMILIES
from validators.options import read_share, read_words, refuse_unknown
from validators.patterns import Pattern
from validators.roles import ROLES, role_of

THRESHOLD = 0.5
WINDOW_SENTENCES = 3
DISGUISE_WEIGHT = 0.5
"""What it says of an order that somebody took pains to hide it."""

_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f]\s|[\u3002\uff01\uff1f\n]+")


@dataclass(frozen=True, slots=True)
class Signal:
    """A family of expressions was found at a place; `is_hidden`: only once a disguise was off, so in another text."""

    family: str
    weight: float
    at: int
    is_hidden: bool = False


class PromptInjection:
    """Block a text in which some `WINDOW_SENTENCES` sentences in a row score `threshold` or more.

    The score is 1 less the product of 1 - weight over the families found there. A list of expressions knows what
    attacks have looked like, not what a text means: it misses new ones, and it finds texts that only speak of them.
    At the input, texts of the `roles` are read; at the output, all.
    """

    name = "prompt_injection"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, *, threshold: float = THRESHOLD, roles: Collection[str] = ("user", "tool")) -> None:
        self._threshold = threshold
        self._roles = frozenset(roles)
        self._families = [
            (family, Pattern("|".join(f"(?:{one})" for one in family.expressions), takes_groups=False))
            for family in FAMILIES
        ]

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Refuse a text that scores too high; the reason names the families."""
        if context.stage is Stage.INPUT and role_of(context) not in self._roles:
            return PASSED
        score, families = self.score(text)
        if score < self._threshold:
            return Verdict(Outcome.PASS, score=score)
        reason = f"it reads like orders to the model ({', '.join(families)})"
        return Verdict(Outcome.BLOCK, reason=reason, score=score)

    def score(self, text: str) -> tuple[float, tuple[str, ...]]:
        """Return the worst window's score, from 0 to 1, and the families found in it."""
        folded = plain(text)
        signals = list(self._signals(folded, is_hidden=False))
        known = {signal.family for signal in signals}
        for hidden in self._hidden(text, folded):
            signals += [one for one in self._signals(hidden, is_hidden=True) if one.family not in known]
        return _worst(signals, _sentence_starts(folded))

    def _hidden(self, text: str, folded: str) -> Iterator[str]:
        bare = undisguised(folded)
        if bare != folded:
            yield bare
        for message in decoded(text):
            yield plain(message)

    def _signals(self, text: str, *, is_hidden: bool) -> Iterator[Signal]:
        for family, pattern in self._families:
            for start, _, _ in pattern.find(text):
                yield Signal(family.name, family.weight, start, is_hidden)


def create_prompt_injection(options: Options) -> PromptInjection:
    """Build the check from `threshold` and `roles`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("threshold", "roles"))
    roles = read_words(options, "roles", ROLES, default=("user", "tool"))
    return PromptInjection(threshold=read_share(options, "threshold", default=THRESHOLD), roles=roles)


def _sentence_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in _SENTENCE_END.finditer(text))]


def _worst(signals: Sequence[Signal], starts: Sequence[int]) -> tuple[float, tuple[str, ...]]:
    """Score every window that begins with a sentence in which something was found; hidden signals count in each."""
    hidden = {signal.family: signal.weight for signal in signals if signal.is_hidden}
    in_sight = sorted((signal for signal in signals if not signal.is_hidden), key=lambda signal: signal.at)
    places = [(bisect_right(starts, signal.at), signal) for signal in in_sight]
    worst: tuple[float, tuple[str, ...]] = (0.0, ())
    for index in range(max(1, len(places))):
        weights = {**hidden, **({"disguise": DISGUISE_WEIGHT} if hidden else {})}
        for sentence, signal in places[index:]:
            if sentence >= places[index][0] + WINDOW_SENTENCES:
                break
            weights[signal.family] = signal.weight
        rest = prod(1.0 - weight for weight in weights.values())
        worst = max(worst, (round(1.0 - rest, 4), tuple(sorted(weights))))
    return worst
