"""A decision laid out flat: the arrays that one forward pass works on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backends.engine.sched.decision import Decision, Draw

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of a step, one after another: N tokens in all.

    `slots` says where each token's keys and values go, as page * page_size + slot. Row r has the tokens from
    `begins[r]` on, `counts[r]` of them, and attends to `lengths[r]` tokens in `pages[r]`. The tokens at `drawn` are
    the ones after which a token is drawn, by `draws`.
    """

    tokens: Ints
    positions: Ints
    slots: Ints
    begins: tuple[int, ...]
    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    drawn: Ints
    draws: tuple[tuple[int, Draw], ...]


def lay_out(decision: Decision, *, page_size: int) -> Batch:
    """Return the batch of a decision that is not empty."""
    rows = decision.rows
    counts = [len(row.tokens) for row in rows]
    ends = list(itertools.accumulate(counts))
    # Lists first: for the many rows of one token an array each would cost more than all the rest.
    tokens, positions, slots = list[int](), list[int](), list[int]()
    for row in rows:
        tokens.extend(row.tokens)
        for position in range(row.start, row.start + len(row.tokens)):
            page, slot = divmod(position, page_size)
            positions.append(position)
            slots.append(row.pages[page] * page_size + slot)
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slots=np.array(slots, dtype=np.int64),
        begins=(0, *ends[:-1]),
        counts=tuple(counts),
        lengths=tuple([row.start + count for row, count in zip(rows, counts, strict=True)]),
        pages=tuple([row.pages for row in rows]),
        drawn=np.array([end - 1 for row, end in zip(rows, ends, strict=True) if row.draw is not None], dtype=np.int64),
        draws=tuple([(row.key, row.draw) for row in rows if row.draw is not None]),
    )
