from __future__ import annotations

import numpy as np

from cache.policies.static import StaticPolicy
from cache.policies.vcache import VCachePolicy
from lab.bench.cache.streams import Request, oracle, run


def a_request(intent: int, tilt: float = 0.0) -> Request:
    vector = np.eye(4, dtype=np.float32)[intent]
    vector[3] = tilt
    return Request(f"question {intent}", str(intent), vector / np.linalg.norm(vector))


STREAM = [a_request(number % 3, tilt=number / 100) for number in range(30)]


def test_a_bar_below_everything_hits_all_but_the_first() -> None:
    served = run(STREAM, StaticPolicy(-1.0), guard=None, seed=0)

    assert [one.is_hit for one in served] == [False] + [True] * 29
    assert sum(one.is_wrong for one in served) == 20


def test_the_oracle_hits_what_the_nearest_entry_answers() -> None:
    served = oracle(STREAM)

    assert [one.is_hit for one in served] == [False] * 3 + [True] * 27
    assert not any(one.is_wrong for one in served)


def test_vcache_keeps_no_question_whose_neighbour_was_right() -> None:
    served = run(STREAM, VCachePolicy(0.5, draw=lambda: 0.999), guard=None, seed=0)

    assert not any(one.is_hit for one in served[:6])  # an entry is explored four times before it serves
    assert all(one.is_hit for one in served[15:])
    assert not any(one.is_wrong for one in served)


def test_equal_seeds_give_equal_runs() -> None:
    first, second = (run(STREAM, StaticPolicy(0.99), guard=None, seed=4) for _ in range(2))

    assert first == second
