"""A live request: what it asked for, its tokens so far, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.engine.kv.cache import Holding
from backends.engine.sched.decision import PENDING, Row
from backends.engine.types import FinishReason, SamplingParams, Submission


@dataclass(slots=True, eq=False)
class Request:
    """One request from submission to its end; keys grow with age, so the smallest is the oldest.

    `num_computed` tokens have their keys and values in the pages of `holding` once `num_flights` decisions that are
    not applied yet are computed, `num_confirmed` have them now; a waiting request has no holding. The last of `tokens`
    are `PENDING`, one for each such decision that draws one. `place_s` is its place in the order of service,
    `num_overtaken` how often a later one was admitted before it, `last_step` the last step with a row of it.
    """

    key: int
    submission: Submission
    seed: int
    place_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_confirmed: int = 0
    num_flights: int = 0
    last_step: int = 0
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

    @property
    def is_ending(self) -> bool:
        """Tell whether the token in flight is the last one allowed, so that nothing is left to plan."""
        return self.tokens[-1] == PENDING and self.num_allowed == 0

    def fly(self, row: Row, *, step: int) -> None:
        """Note that a row is decided and not computed yet; what it draws is pending."""
        self.num_computed, self.last_step = row.start + len(row.tokens), step
        self.num_flights += 1
        if row.draw is not None:
            self.tokens.append(PENDING)

    def end_of(self, token: int, *, eos_ids: frozenset[int]) -> FinishReason | None:
        """Return the reason if this token, in place of the first pending one, is the last."""
        params = self.submission.params
        is_eos = token in eos_ids and not params.ignore_eos
        if is_eos or token in params.stop_ids:
            return FinishReason.STOP
        num_generated = self._first_pending + 1 - len(self.submission.prompt)
        return FinishReason.LENGTH if num_generated == params.max_tokens else None

    def settle(self, token: int, *, is_last: bool) -> None:
        """Put the drawn token in place of the first pending one; after the last one nothing is pending any more."""
        index = self._first_pending
        assert self.tokens[index] == PENDING, "a token that no row was to draw"
        self.tokens[index] = token
        if is_last:
            del self.tokens[index + 1 :]

    @property
    def _first_pending(self) -> int:
        """Return the index of the first of at most two pending tokens."""
        return len(self.tokens) - (2 if self.tokens[-2] == PENDING else 1)
