from __future__ import annotations

import random

from cache.policies.features import Features
from cache.policies.policy import Label
from cache.policies.vcache import VCachePolicy, fit_threshold


def a_label(similarity: float, is_correct: bool, entry: str = "e") -> Label:
    return Label(entry, Features(similarity), is_correct, "judge", 0.0)


def taught(policy: VCachePolicy, *labels: Label) -> VCachePolicy:
    for label in labels:
        policy = policy.observe(label)
    return policy


def test_an_entry_is_explored_four_times_before_it_serves() -> None:
    policy = VCachePolicy(0.5, draw=lambda: 0.999)
    for _ in range(4):
        assert not policy.judge("e", Features(1.0)).may_serve
        policy = policy.observe(a_label(0.95, is_correct=True))

    assert policy.judge("e", Features(1.0)).may_serve


def test_a_low_similarity_is_explored_more_than_a_high_one() -> None:
    observed = tuple([(0.0, False), (1.0, True)] + [(0.6, False)] * 20 + [(0.9, True)] * 40)
    threshold = fit_threshold(observed)

    assert 0.6 < threshold.middle < 0.9
    assert threshold.explore_share(0.65, budget=0.05) > threshold.explore_share(0.99, budget=0.05)


def test_a_bigger_budget_explores_less() -> None:
    threshold = fit_threshold(tuple([(0.0, False), (1.0, True)] + [(0.6, False)] * 4 + [(0.9, True)] * 6))

    assert threshold.explore_share(0.9, budget=0.1) < threshold.explore_share(0.9, budget=0.01)


def test_errors_stay_within_the_budget_where_the_sigmoid_is_true() -> None:
    draw = random.Random(3)
    policy = VCachePolicy(0.05, draw=draw.random)
    wrong = hits = 0
    for number in range(3000):
        similarity = draw.random()
        is_correct = draw.random() < 1.0 / (1.0 + 2.718 ** (-20 * (similarity - 0.6)))
        if policy.judge("e", Features(similarity)).may_serve:
            hits += 1
            wrong += not is_correct
        elif number < 400:
            policy = taught(policy, a_label(similarity, is_correct))

    assert hits > 300
    assert wrong / 3000 <= 0.05


def test_entries_know_nothing_of_each_other() -> None:
    policy = taught(VCachePolicy(0.5, draw=lambda: 0.999), *[a_label(0.95, is_correct=True, entry="one")] * 6)

    assert policy.judge("one", Features(1.0)).may_serve
    assert not policy.judge("other", Features(1.0)).may_serve
