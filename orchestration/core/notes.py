"""What each layer decided about one call: the one mutable thing in it, read by the headers and by the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestration.core.value import value

DROPPED_PARAMS = "dropped_params"
"""The key of `Notes.extra` that names the fields which the backend was not told of, as it does not take them."""

ENGINE = "engine"
"""The key of `Notes.extra` under which an engine of ours tells when things happened: one map for each sequence,
`submitted_ms` since the call came in, and all else in milliseconds since the engine queued it: `queued`, `admitted`,
`first_token`, `finished`, and `preempted` with one for each time. A sequence that was aborted has no `finished`."""


class CacheStatus(StrEnum):
    """The cache's part in the answer, as `x-lamina-cache` says it; BYPASS means: not looked up."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    MISS = "miss"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A neighbour that the semantic cache looked at; `similarity` is the cosine, in [-1, 1].

    `veto` is the guard's reason code where it objected. `p_correct` is the policy's estimate, `p_required` what it
    asked for, and `inputs` the numbers that both follow from; None where the candidate was not judged.
    """

    entry: str
    similarity: float
    veto: str | None = None
    p_correct: float | None = None
    p_required: float | None = None
    inputs: tuple[float, ...] | None = None


@dataclass(slots=True)
class CacheNote:
    """How the caches decided. `reason` says why a look-up was bypassed, missed or an answer was not stored.

    `is_alias`: the judge had said, off the path, that the entry answers this very question. `asked_alone`: the
    partition that was looked in, where the question depends on nothing that was said before it. `stored_as`: the
    semantic entry that the answer was begun to be kept as.
    """

    status: CacheStatus = CacheStatus.BYPASS
    reason: str | None = None
    key: str | None = None
    key_version: int | None = None
    entry: str | None = None
    entry_call: str | None = None
    entry_created_at: float | None = None
    ttl_s: float | None = None
    is_collapsed: bool = False
    is_alias: bool = False
    similarity: float | None = None
    threshold: float | None = None
    policy: str | None = None
    policy_version: str | None = None
    policy_applied: int | None = None
    guard_version: int | None = None
    p_correct: float | None = None
    p_required: float | None = None
    partition: str | None = None
    asked_alone: str | None = None
    embedder: str | None = None
    index_generation: int | None = None
    candidates: list[Candidate] = field(default_factory=list)
    was_stored: bool = False
    store_reason: str | None = None
    stored_as: str | None = None


@value
class CheckNote:
    """One check's verdict: pass, rewrite, block or error, and what was done about it.

    `version` is the check's code's; `score` what a check that scores went by, from 0 to 1.
    """

    check: str
    stage: str
    verdict: str
    action: str
    reason: str | None = None
    duration_ms: float = 0.0
    version: str = ""
    score: float | None = None


@value
class Attempt:
    """One try at one backend; `error` is the error's code, None where it answered."""

    model: str
    backend: str
    error: str | None = None
    duration_ms: float = 0.0


@dataclass(slots=True)
class Notes:
    """Everything that was decided about one call so far. Each field has one writer: the layer it is named after."""

    cache: CacheNote = field(default_factory=CacheNote)
    checks: list[CheckNote] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    model: str | None = None
    backend: str | None = None
    is_fallback: bool = False
    cost_usd: float | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    degraded: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def degrade(self, reason: str) -> None:
        """Say, once, that a part was missing or too slow and the call went on without it."""
        if reason not in self.degraded:
            self.degraded.append(reason)
