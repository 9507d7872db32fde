from __future__ import annotations

import numpy as np
import pytest

from lab.bench.cache.eviction import POLICIES, _is_dear, _World
from lab.bench.cache.streams import Request

NUM_STRANGERS = 200


def a_stream() -> list[Request]:
    """Ask one dear question again and again, between cheap ones that come once."""
    axes = np.eye(NUM_STRANGERS + 1, dtype=np.float32)
    cheap = [name for name in (f"i{number}" for number in range(2 * NUM_STRANGERS + 50)) if not _is_dear(name)]
    dear = next(name for name in (f"d{number}" for number in range(50)) if _is_dear(name))
    stream = []
    for number in range(NUM_STRANGERS):
        if number % 20 == 0:
            stream.append(Request("the dear question", dear, axes[NUM_STRANGERS]))
        stream.append(Request(f"a stranger, {number}", cheap[number], axes[number]))
    return stream


@pytest.mark.parametrize(
    ("policy", "is_kept"), [("lru", False), ("fifo", False), ("worth", True), ("greedy-dual", True)]
)
def test_what_is_worth_more_outlives_what_came_later(policy: str, is_kept: bool) -> None:
    world = _World(a_stream(), cheap=1e-9, dear=1e-3)

    outcome = world.run(8_000, POLICIES[policy])

    assert (outcome.saved_usd > 0.0) is is_kept
    assert outcome.wrong == 0


def test_without_a_bound_every_policy_keeps_everything() -> None:
    world = _World(a_stream(), cheap=1e-9, dear=1e-3)

    outcomes = [world.run(float("inf"), policy) for policy in POLICIES.values()]

    assert len({(outcome.right, outcome.peak_bytes) for outcome in outcomes}) == 1
    assert outcomes[0].right > 0
