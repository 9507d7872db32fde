"""A decision in the making."""

from __future__ import annotations

from dataclasses import dataclass

from backends.engine.config import EngineConfig
from backends.engine.sched.decision import Copy, Decision, Move, Row


@dataclass(frozen=True, slots=True)
class Fetch:
    """What is to be brought into the pages of a request that starts, before its first row."""

    copies: tuple[Copy, ...] = ()
    loads: tuple[Move, ...] = ()


class Step:
    """The rows so far, what is left of the step's tokens, and who gave way.

    While answers are being decoded, prompts take at most their share together, so that a step, and with it the time
    between an answer's tokens, stays short; of several prompts one takes at most its own share.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._prompt_counts: dict[int, int] = {}
        self._num_prompt_tokens = 0
        self.budget = config.max_batched_tokens
        self.prompt_limit = config.max_batched_tokens
        self.rows: dict[int, Row] = {}
        self.fetches: dict[int, Fetch] = {}
        self.preempted: list[int] = []

    @property
    def prompt_room(self) -> int:
        """Return how many tokens of prompts still fit."""
        return min(self.budget, self.prompt_limit - self._num_prompt_tokens)

    @property
    def is_full(self) -> bool:
        """Tell whether no more rows fit, or no more tokens."""
        return len(self.rows) >= self._config.num_rows or self.budget <= 0

    def limit_prompts(self) -> None:
        """Hold prompts to their share from now on, if there are rows, all of them of answers."""
        if self.rows:
            self.prompt_limit = max(1, int(self._config.prefill_share * self._config.max_batched_tokens))

    def chunk(self, num_pending: int, *, is_alone: bool) -> int:
        """Return how many of a prompt's pending tokens to compute."""
        share = 1.0 if is_alone else self._config.chunk_share
        return min(num_pending, self.prompt_room, max(1, int(share * self._config.max_batched_tokens)))

    def add(self, row: Row, *, is_prompt: bool) -> None:
        """Put a row in."""
        count = len(row.tokens)
        self.rows[row.key] = row
        self.budget -= count
        if is_prompt:
            self._prompt_counts[row.key] = count
            self._num_prompt_tokens += count

    def remove(self, key: int) -> bool:
        """Note that a request gives way, and take its row out if it has one; tells whether it started in this step."""
        row = self.rows.pop(key, None)
        self.budget += row.count if row else 0
        self._num_prompt_tokens -= self._prompt_counts.pop(key, 0)
        self.preempted.append(key)
        return self.fetches.pop(key, None) is not None

    def decide(self, number: int, saves: tuple[Move, ...]) -> Decision:
        """Return the decision that this has become."""
        return Decision(
            number,
            tuple(self.rows.values()),
            tuple(self.preempted),
            saves,
            tuple(copy for fetch in self.fetches.values() for copy in fetch.copies),
            tuple(move for fetch in self.fetches.values() for move in fetch.loads),
        )
