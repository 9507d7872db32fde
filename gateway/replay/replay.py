"""Every decision of a record made again, and the sum over many records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.replay.answer_checks_decision import AnswerChecksReplay
from gateway.replay.cache_decision import CacheReplay
from gateway.replay.checks_decision import ChecksReplay
from gateway.replay.finding import Finding, Verdict
from gateway.replay.routing_decision import routing_findings


@dataclass(frozen=True, slots=True)
class Replay:
    """Make the decisions of recorded calls again; nothing but the record, this version's code and the texts of known
    entries is looked at.
    """

    cache: CacheReplay
    checks: ChecksReplay
    answers: AnswerChecksReplay | None = None

    async def of(self, record: Mapping[str, Any], *, questions: Mapping[str, str]) -> list[Finding]:
        """Return what became of each decision of one call."""
        findings = list(self.cache.findings(record, questions=questions))
        findings += routing_findings(record)
        checked = await self.checks.finding(record)
        answered = [] if self.answers is None else await self.answers.findings(record)
        return [*([checked] if checked else ()), *findings, *answered]


@dataclass(slots=True)
class Tally:
    """How many decisions agree, by part and verdict, and the first call whose decision differs."""

    num_calls: int = 0
    counts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    first_difference: tuple[str, Finding] | None = None

    def add(self, call: str, findings: list[Finding]) -> None:
        """Count one call."""
        self.num_calls += 1
        for finding in findings:
            self.counts[finding.part, finding.verdict] += 1
            if finding.verdict is Verdict.DIFFERS and self.first_difference is None:
                self.first_difference = (call, finding)

    @property
    def num_different(self) -> int:
        """Count the decisions that came out otherwise."""
        return sum(count for (_, verdict), count in self.counts.items() if verdict is Verdict.DIFFERS)
