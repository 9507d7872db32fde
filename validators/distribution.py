"""Hold answers to what is known of how they are distributed: which may follow a question, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.options import read, read_share, refuse_unknown
from validators.patterns import compiled

MAX_RULES = 10_000


@dataclass(frozen=True, slots=True)
class Known:
    """Questions that a pattern is found in, and the probability of each answer to them; answers not named have none."""

    when: re2._Regexp
    answers: Mapping[str, float]


class Distribution:
    """Refuse an answer whose probability, given the question, is below `min_probability`, or which is not possible.

    The first rule whose pattern is found in the question counts; a question that none is found in is not judged
    unless `only_known`. A question is the last user message, or the prompt; both sides are compared in lower case, with
    single blanks, an answer without the full stop at its end. What it cannot see: an answer that is possible and
    wrong all the same.
    """

    name = "distribution"
    version = "1"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset({Stage.OUTPUT})
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, rules: Sequence[Known], *, min_probability: float = 0.0, only_known: bool = False) -> None:
        self._rules = tuple(rules)
        self._min_probability = min_probability
        self._only_known = only_known

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Refuse an improbable answer, giving its improbability as the score."""
        question = "" if context.request is None else question_of(context.request)
        probability = self.probability(question, text)
        if probability is None:
            unknown = Verdict(Outcome.BLOCK, reason="nothing is known of answers to such a question")
            return unknown if self._only_known else PASSED
        score = round(1.0 - probability, 6)
        if probability > 0.0 and probability >= self._min_probability:
            return Verdict(Outcome.PASS, score=score)
        what = "is not possible" if probability <= 0.0 else "is less probable than allowed"
        return Verdict(Outcome.BLOCK, reason=f"such an answer {what} here", score=score)

    def probability(self, question: str, answer: str) -> float | None:
        """Return the probability of an answer; None where no rule knows the question."""
        data = _plain(question).encode("utf-8", "replace")
        for rule in self._rules:
            if rule.when.search(data) is not None:
                return rule.answers.get(_plain_answer(answer), 0.0)
        return None


def create_distribution(options: Options) -> Distribution:
    """Build the check from `rules`, `min_probability` and `only_known`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("rules", "min_probability", "only_known"))
    rows = read(options, "rules", list)
    if not rows or len(rows) > MAX_RULES:
        raise ValueError(
            f"rules: must be a list of 1 to {MAX_RULES} rules, as in {{when: 'in boston', answers: {{rainy: 1}}}}"
        )
    return Distribution(
        [_known(row, f"rules[{index}]") for index, row in enumerate(rows)],
        min_probability=read_share(options, "min_probability", default=0.0),
        only_known=read(options, "only_known", bool, default=False),
    )


def question_of(request: Request) -> str:
    """Return the last user message's text, or the prompt."""
    for message in reversed(request.messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [content]
            return " ".join(str(part.get("text", "")) if isinstance(part, dict) else str(part or "") for part in parts)
    prompt = request.fields.get("prompt")
    return prompt if isinstance(prompt, str) else ""


def _known(row: Any, where: str) -> Known:
    """Read a rule: `when`, and `answers` with their weights, which are made to add up to 1, or as a list of equals."""
    if not isinstance(row, dict) or set(row) != {"when", "answers"} or not isinstance(row["when"], str):
        raise ValueError(f"{where}: must have `when`, a pattern, and `answers`")
    answers = row["answers"]
    weights = dict.fromkeys(answers, 1.0) if isinstance(answers, list) else answers
    if not isinstance(weights, dict) or not weights or not all(_is_weight(weight) for weight in weights.values()):
        raise ValueError(f"{where}.answers: must map answers to weights of 0 or more, not all 0, or list them")
    total = float(sum(weights.values()))
    if total <= 0:
        raise ValueError(f"{where}.answers: must not all have the weight 0")
    try:
        when = compiled(f"(?i){row['when']}")
    except ValueError as exc:
        raise ValueError(f"{where}.when: {exc}") from exc
    return Known(when, {_plain_answer(str(answer)): weight / total for answer, weight in weights.items()})


def _is_weight(weight: Any) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and 0 <= weight < float("inf")


def _plain_answer(text: str) -> str:
    return _plain(text).rstrip(" .")


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().lower()
