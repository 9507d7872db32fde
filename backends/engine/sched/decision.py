"""The decision of one step: a value that can be printed, compared, and computed by anyone."""

from __future__ import annotations

from dataclasses import dataclass

from backends.engine.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw the token at `position` of a request."""

    params: SamplingParams
    seed: int
    position: int


@dataclass(frozen=True, slots=True)
class Row:
    """Compute `tokens` of request `key` at positions from `start` on, with `pages` holding all of it so far.

    Where `draw` is given, the last of the tokens is the request's last, and the next one is drawn after it.
    """

    key: int
    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    draw: Draw | None

    @property
    def count(self) -> int:
        """Return how many tokens this row computes."""
        return len(self.tokens)

    @property
    def end(self) -> int:
        """Return how many tokens of the request are computed after this row."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Decision:
    """The rows of one step, decodes first, and the requests that lost their pages for it."""

    step: int
    rows: tuple[Row, ...]
    preempted: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the step computes."""
        return sum(row.count for row in self.rows)

    def describe(self) -> str:
        """Return one line: request, start and count of every row, without any token."""
        rows = " ".join(f"{row.key}:{row.start}+{row.count}{'' if row.draw else '~'}" for row in self.rows)
        return f"step={self.step} rows=[{rows}] preempted={list(self.preempted)}"
