"""A live request: what it asked for, its tokens so far, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.engine.kv.cache import Holding
from backends.engine.types import FinishReason, SamplingParams, Submission


@dataclass(slots=True, eq=False)
class Request:
    """One request from submission to its end; keys grow with age, so the smallest is the oldest.

    `num_computed` tokens have their keys and values in the pages of `holding`; a waiting request has no holding.
    `place_s` is its place in the order of service, `num_overtaken` how often a later one was admitted before it.
    """

    key: int
    submission: Submission
    seed: int
    place_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    holding: Holding | None = None
    cached_prompt_tokens: int | None = None
    num_overtaken: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.submission.prompt)

    @property
    def params(self) -> SamplingParams:
        """Return how its tokens are drawn."""
        return self.submission.params

    @property
    def was_admitted(self) -> bool:
        """Tell whether it ever ran, so that waiting now means that it gave way."""
        return self.cached_prompt_tokens is not None

    @property
    def num_pending(self) -> int:
        """Return how many tokens are still to be computed before the next one can be drawn."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Return how many tokens were drawn so far."""
        return len(self.tokens) - len(self.submission.prompt)

    @property
    def num_allowed(self) -> int:
        """Return how many tokens may still be drawn."""
        return self.params.max_tokens - self.num_generated

    def append(self, token: int, *, eos_ids: frozenset[int]) -> FinishReason | None:
        """Add a drawn token; returns the reason if it is the last one."""
        self.tokens.append(token)
        is_eos = token in eos_ids and not self.params.ignore_eos
        if is_eos or token in self.params.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_allowed == 0 else None
