"""What a check is: it looks at one text and says what it found; what is done about it is the policy's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from orchestration.core import Request

Options = Mapping[str, Any]


class Stage(StrEnum):
    """Where a check stands: before the caches and the model, or between the model and the caches."""

    INPUT = "input"
    OUTPUT = "output"


class Outcome(StrEnum):
    """What a check found: nothing, something it can rewrite, something it cannot, or that it could not run."""

    PASS = "pass"
    REWRITE = "rewrite"
    BLOCK = "block"
    ERROR = "error"


class Subject(StrEnum):
    """What a check is about.

    CONTENT checks read the normalised shadow of each text by itself: every message, tool argument, reasoning.
    SHAPE checks read, as it is, all of the request's text together, or the text of one choice as it is about to
    leave, after the content checks have rewritten it.
    """

    CONTENT = "content"
    SHAPE = "shape"


class Cost(StrEnum):
    """What a check costs: microseconds in this process, or a round trip to the guardrails worker."""

    INLINE = "inline"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` (exclusive) of the checked text, and what a rewrite puts in their place."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found. `spans` are ordered and apart; `reason` is for the client and never quotes the text.

    `score` is what a check that scores went by, from 0 (nothing) to 1. Of an error, `is_requests_fault` says that what
    the request brought cannot be used: it says nothing about the check.
    """

    outcome: Outcome
    spans: tuple[Span, ...] = ()
    reason: str | None = None
    score: float | None = None
    is_requests_fault: bool = False


PASSED = Verdict(Outcome.PASS)


@dataclass(frozen=True, slots=True)
class Context:
    """Where the checked text stands, and the request that it belongs to (as it was sent), where there is one.

    Matches are looked for from `start` on; what lies before it is there to be looked back at. With
    `follows_match` the check's own last match ended exactly at `start`.
    """

    stage: Stage
    where: str
    start: int = 0
    follows_match: bool = False
    request: Request | None = None


class Check(Protocol):
    """Look at a text. An instance is shared by all calls and keeps nothing of any text."""

    @property
    def name(self) -> str:
        """Name the check as the settings do."""
        ...

    @property
    def version(self) -> str:
        """Name the code's version: it changes whenever the same text may get another verdict."""
        ...

    @property
    def subject(self) -> Subject:
        """Say what the check reads."""
        ...

    @property
    def cost(self) -> Cost:
        """Say what one run costs."""
        ...

    @property
    def stages(self) -> frozenset[Stage]:
        """Say where the check may stand."""
        ...

    @property
    def rewrites(self) -> frozenset[Stage]:
        """Say where the check can rewrite what it finds."""
        ...

    @property
    def longest_match(self) -> int | None:
        """Bound a match, in shadow characters; None where there is no bound, so that a stream must be held whole.

        A check with a bound finds its matches from left to right without overlap, and whether there is one at
        some place depends on at most this many characters from there, and on one more at either side.
        """
        ...

    def applies(self, request: Request) -> bool:
        """Tell whether the check has anything to say about this request or its answer."""
        ...

    async def check(self, text: str, context: Context) -> Verdict:
        """Judge the text; a check that cannot run says so by `Outcome.ERROR` and does not raise."""
        ...
