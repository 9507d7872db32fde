"""A decision laid out flat: the arrays that one forward pass works on."""

from __future__ import annotations

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
    counts = np.array([row.count for row in rows])
    ends = np.cumsum(counts)
    positions = np.concatenate([np.arange(row.start, row.end) for row in rows])
    own_pages = [np.array(row.pages)[np.arange(row.start, row.end) // page_size] for row in rows]
    is_drawn = [index for index, row in enumerate(rows) if row.draw is not None]
    return Batch(
        tokens=np.array([token for row in rows for token in row.tokens], dtype=np.int64),
        positions=positions,
        slots=np.concatenate(own_pages) * page_size + positions % page_size,
        begins=tuple((ends - counts).tolist()),
        counts=tuple(counts.tolist()),
        lengths=tuple(row.end for row in rows),
        pages=tuple(row.pages for row in rows),
        drawn=ends[is_drawn] - 1,
        draws=tuple((row.key, row.draw) for row in rows if row.draw is not None),
    )
