"""The decision of one step: a value that can be printed, compared, and computed by anyone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from backends.engine.types import SamplingParams

PENDING = -1
"""Stands for a token that a step in flight has yet to draw."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the keys and values of the first `num_slots` tokens of a page to another page."""

    source: int
    target: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a whole page between the pool and the swap space; each numbers its own pages."""

    source: int
    target: int


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
    """The rows of one step, decodes first, and the requests that lost their pages for it.

    Before the rows are computed pages are moved, in this order: `saves` from the pool to the swap space, `copies`
    within the pool, `loads` from the swap space to the pool. So a page may be saved or copied from and be another's
    in the same step.
    """

    step: int
    rows: tuple[Row, ...]
    preempted: tuple[int, ...] = ()
    saves: tuple[Move, ...] = ()
    copies: tuple[Copy, ...] = ()
    loads: tuple[Move, ...] = ()

    def settle(self, drawn: Mapping[int, int], *, without: Collection[int]) -> Decision:
        """Return the same with the drawn tokens where they were pending, and without the rows of some requests."""
        rows = (row for row in self.rows if row.key not in without)
        settled = (replace(row, tokens=(drawn[row.key],)) if row.tokens == (PENDING,) else row for row in rows)
        return replace(self, rows=tuple(settled))

    @property
    def loaded_keys(self) -> set[int]:
        """Return the requests for which pages are brought back from the swap space."""
        targets = {move.target for move in self.loads}
        return {row.key for row in self.rows if not targets.isdisjoint(row.pages)}

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to compute and nothing to move."""
        return not (self.rows or self.saves or self.copies or self.loads)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the step computes."""
        return sum(row.count for row in self.rows)

    def describe(self) -> str:
        """Return one line: request, start and count of every row, without any token."""
        rows = " ".join(f"{row.key}:{row.start}+{row.count}{'' if row.draw else '~'}" for row in self.rows)
        moved = "".join(
            f" {name}={len(moves)}"
            for name, moves in (("saves", self.saves), ("copies", self.copies), ("loads", self.loads))
            if moves
        )
        return f"step={self.step} rows=[{rows}] preempted={list(self.preempted)}{moved}"
