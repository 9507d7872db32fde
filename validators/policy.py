"""What is done about a check's verdict, and the record of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

from orchestration.core import Call, CheckNote, Request
from orchestration.core.errors import Blocked, CheckUnavailable
from validators.check import PASSED, Check, Context, Outcome, Stage, Verdict
from validators.reask import Reask, can_ask_again
from validators.scope import EVERYTHING, CallerOf, Scope

RETRY_AFTER_S = 2.0


class OnFail(StrEnum):
    """What happens when a check finds something."""

    BLOCK = "block"
    REWRITE = "rewrite"
    FLAG = "flag"
    REASK = "reask"


class Mode(StrEnum):
    """How an output check treats a stream.

    WINDOW holds back as many characters as the longest match has, HOLD the whole answer, OBSERVE nothing.
    """

    WINDOW = "window"
    HOLD = "hold"
    OBSERVE = "observe"


class Fail(StrEnum):
    """What happens when a check cannot run: the call goes on, and its record says so, or it ends."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Rule:
    """A check, what is done about it, and for which calls; `reasks` is how often the model is asked again."""

    check: Check
    on_fail: OnFail
    mode: Mode
    fail: Fail
    scope: Scope = EVERYTHING
    reasks: int = 1

    def stands_for(self, call: Call, caller_of: CallerOf) -> bool:
        """Tell whether the rule is meant for this call."""
        return self.scope.holds(call, caller_of) and self.check.applies(call.request)

    @property
    def only_tells(self) -> bool:
        """Tell whether the rule's finding changes nothing but the record."""
        return self.on_fail is OnFail.FLAG or self.mode is Mode.OBSERVE


class Tally:
    """Run the rules' checks for one call and keep what came of it, one `CheckNote` for each check that ran.

    `num_reasks` counts how often the model was asked again; whoever does that counts it. `place` names the stage in the
    notes where it is another than the checks'.
    """

    def __init__(self, call: Call, rules: Sequence[Rule], stage: Stage, *, place: str | None = None) -> None:
        self.stage = stage
        self._place = place or stage
        self._call = call
        self._lines = {id(rule): _Line(rule) for rule in rules}
        self._is_recorded = False
        self.num_reasks = 0

    @property
    def request(self) -> Request:
        """Return the request as it was sent."""
        return self._call.request

    async def judge(
        self, rule: Rule, text: str, context: Context, *, param: str | None = None, limit: int | None = None
    ) -> Verdict:
        """Run a check and return what is to be rewritten, which is nothing where the rule only tells.

        Matches that begin at `limit` or later are not final yet and are left out. Raises
        `Blocked` where the rule blocks, `CheckUnavailable` where the check failed closed, and `Reask`.
        """
        line = self._lines[id(rule)]
        begun = time.perf_counter()
        verdict = await rule.check.check(text, context)
        line.duration_ms += (time.perf_counter() - begun) * 1000.0
        if limit is not None and verdict.spans:
            verdict = _begun_before(limit, verdict)
        line.note(verdict)
        if verdict.outcome is Outcome.ERROR:
            self.miss(rule, param=param)
        elif verdict.outcome is not Outcome.PASS:
            return self._act(rule, verdict, line, param)
        return PASSED

    def miss(self, rule: Rule, *, reason: str | None = None, param: str | None = None) -> None:
        """Note that a check could not run; raises `CheckUnavailable` where it fails closed."""
        line = self._lines[id(rule)]
        if reason is not None:
            line.note(Verdict(Outcome.ERROR, reason=reason))
        line.has_failed = True
        name = rule.check.name
        if rule.fail is Fail.CLOSED and not rule.only_tells:
            line.action = "failed_closed"
            message = f"The {self.stage} check '{name}' could not run, and nothing passes without it."
            raise CheckUnavailable(message, param=param, retry_after_s=RETRY_AFTER_S)
        line.action = "failed_open"
        self._call.notes.degrade(f"check {name} ({self.stage}) did not run")

    def has_failed(self, rule: Rule) -> bool:
        """Tell whether a check could not run for this call; it is then not asked again."""
        return self._lines[id(rule)].has_failed

    def record(self) -> None:
        """Write the notes, once: later calls change nothing."""
        if self._is_recorded:
            return
        self._is_recorded = True
        notes = self._call.notes
        for line in self._lines.values():
            if line.outcome is not None:
                notes.checks.append(line.written(self._place))
        spent_ms = sum(line.duration_ms for line in self._lines.values())
        notes.stages_ms[f"{self._place}_checks"] = spent_ms

    def _act(self, rule: Rule, verdict: Verdict, line: _Line, param: str | None) -> Verdict:
        if rule.only_tells:
            line.action = "flagged"
            return PASSED
        if rule.on_fail is OnFail.REWRITE and verdict.outcome is Outcome.REWRITE:
            line.action = "rewritten"
            return verdict
        if rule.on_fail is OnFail.REASK and self.num_reasks < rule.reasks and can_ask_again(self._call):
            line.action = "reasked"
            raise Reask(verdict.reason or f"the check '{rule.check.name}' refuses it")
        line.action = "blocked"
        self._refuse(rule, verdict, param)

    def _refuse(self, rule: Rule, verdict: Verdict, param: str | None) -> NoReturn:
        what = "request" if self.stage is Stage.INPUT else "answer"
        raise Blocked(f"The {what} was blocked by the check '{rule.check.name}': {verdict.reason}.", param=param)


def _begun_before(limit: int, verdict: Verdict) -> Verdict:
    spans = tuple(span for span in verdict.spans if span.start < limit)
    return replace(verdict, spans=spans) if spans else PASSED


_WEIGHT = {Outcome.PASS: 0, Outcome.REWRITE: 1, Outcome.BLOCK: 2, Outcome.ERROR: 3}


class _Line:
    """What one check did in one call: its worst verdict."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.score: float | None = None
        self.action = "passed"
        self.duration_ms = 0.0
        self.has_failed = False

    def note(self, verdict: Verdict) -> None:
        if self.outcome is None or _WEIGHT[verdict.outcome] > _WEIGHT[self.outcome]:
            self.outcome, self.reason, self.score = verdict.outcome, verdict.reason, verdict.score
        elif verdict.score is not None and verdict.outcome is self.outcome:
            self.score = max(verdict.score, self.score or 0.0)

    def written(self, stage: str) -> CheckNote:
        assert self.outcome is not None, "only a check that ran is written"
        return CheckNote(
            check=self.rule.check.name,
            stage=stage,
            verdict=self.outcome,
            action=self.action,
            reason=self.reason,
            duration_ms=round(self.duration_ms, 4),
            version=self.rule.check.version,
            score=self.score,
        )
