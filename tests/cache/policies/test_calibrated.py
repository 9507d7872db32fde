from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.policies.calibrated import MAX_ENTRIES, WINDOW, CalibratedPolicy, Learned, chance_of
from cache.policies.features import Features
from cache.policies.policy import Label
from cache.policies.record import EntryRecord
from cache.policies.scorer import PooledModel, load_model

NEAR = Features(0.99)
FAR = Features(0.75, least_shared=0.3, one_sided=2.0, special=2.0)
FEATURES = st.builds(
    Features,
    similarity=st.floats(-1, 1),
    least_shared=st.floats(0, 1),
    one_sided=st.floats(0, 4),
    special=st.integers(0, 3).map(float),
    names_apart=st.sampled_from([0.0, 1.0]),
    denies_otherwise=st.sampled_from([0.0, 1.0]),
)


@pytest.fixture(scope="module")
def model() -> PooledModel:
    return load_model()


def a_label(is_correct: bool, *, entry: str = "e", features: Features = NEAR, weight: float = 1.0) -> Label:
    return Label(entry, features, is_correct, "shadow", 0.0, weight)


def taught(policy: CalibratedPolicy, *labels: Label) -> CalibratedPolicy:
    for label in labels:
        policy = policy.observe(label)
    return policy


@pytest.mark.parametrize(("cost", "required"), [(1.0, 0.0), (2.0, 0.5), (25.0, 0.96), (1000.0, 0.999)])
def test_the_price_of_a_wrong_answer_sets_the_bar(model: PooledModel, cost: float, required: float) -> None:
    judged = CalibratedPolicy(model, wrong_to_call_cost=cost).judge("e", NEAR)

    assert judged.p_required == pytest.approx(required)
    assert judged.may_serve == (judged.p_correct >= required)


def test_a_near_question_is_worth_it_at_the_default_price_and_a_far_one_is_not(model: PooledModel) -> None:
    policy = CalibratedPolicy(model)

    assert policy.judge("e", NEAR).may_serve
    assert not policy.judge("e", FAR).may_serve


def test_without_labels_no_cosine_below_the_safe_bar_is_served(model: PooledModel) -> None:
    policy = CalibratedPolicy(model, wrong_to_call_cost=1.0, safe_bar=0.9)

    assert policy.judge("e", Features(0.9)).may_serve
    assert not policy.judge("e", Features(0.8999)).may_serve


@given(FEATURES)
def test_a_nearer_cosine_never_lowers_the_mean(features: Features) -> None:
    nearer = replace(features, similarity=min(1.0, features.similarity + 0.1))

    assert MODEL.logit(nearer.values())[0] >= MODEL.logit(features.values())[0]


@given(FEATURES, st.lists(st.tuples(FEATURES, st.booleans()), max_size=8))
def test_the_chance_follows_from_the_inputs_that_are_kept(
    features: Features, seen: list[tuple[Features, bool]]
) -> None:
    policy = taught(CalibratedPolicy(MODEL), *(a_label(right, features=one) for one, right in seen))
    judged = policy.judge("e", features)

    assert 0.0 <= judged.p_correct <= 1.0
    assert chance_of(MODEL, json.loads(json.dumps(judged.inputs))) == judged.p_correct


def test_an_entry_that_was_wrong_is_trusted_less_and_others_hardly(model: PooledModel) -> None:
    before = CalibratedPolicy(model)
    after = taught(before, *[a_label(False, entry="bad")] * 4)

    assert after.judge("bad", NEAR).p_correct < before.judge("bad", NEAR).p_correct - 0.02
    assert after.judge("other", NEAR).p_correct == pytest.approx(before.judge("other", NEAR).p_correct, abs=0.01)


def test_an_entry_that_was_right_is_trusted_more(model: PooledModel) -> None:
    before = CalibratedPolicy(model)
    after = taught(before, *[a_label(True, features=FAR)] * 12)

    assert after.judge("e", FAR).p_correct > before.judge("e", FAR).p_correct


def test_wrong_labels_of_many_entries_tighten_the_bar_for_all(model: PooledModel) -> None:
    before = CalibratedPolicy(model)
    after = taught(before, *(a_label(number % 3 > 0, entry=str(number)) for number in range(200)))

    assert before.judge("new", NEAR).may_serve
    assert not after.judge("new", NEAR).may_serve
    assert after.learned.scale.of(3.0) < 3.0


def test_right_labels_open_what_the_safe_bar_had_closed(model: PooledModel) -> None:
    middle = Features(0.85)
    before = CalibratedPolicy(model, wrong_to_call_cost=5.0, budget=0.05)
    after = taught(before, *(a_label(True, entry=str(number), features=middle) for number in range(60)))

    assert not before.judge("new", middle).may_serve
    assert after.learned.bar is not None
    assert after.judge("new", middle).may_serve


def test_what_was_learned_survives_a_restart(model: PooledModel) -> None:
    policy = taught(CalibratedPolicy(model), *(a_label(number % 7 > 0, entry=str(number % 5)) for number in range(90)))

    again = CalibratedPolicy(model).restore(json.loads(json.dumps(policy.dump())))

    assert again == policy


def test_what_another_version_learned_is_left_out(model: PooledModel) -> None:
    kept = taught(CalibratedPolicy(model), a_label(False)).dump()

    assert CalibratedPolicy(model).restore({**kept, "version": "calibrated-0/none"}).learned == Learned()


def test_observing_leaves_the_policy_before_as_it_was(model: PooledModel) -> None:
    before = CalibratedPolicy(model)
    before.observe(a_label(False))

    assert before == CalibratedPolicy(model)


def test_what_is_remembered_has_bounds(model: PooledModel) -> None:
    full = Learned(records={str(number): EntryRecord() for number in range(MAX_ENTRIES)})
    policy = replace(CalibratedPolicy(model), learned=full)

    after = taught(policy, *[a_label(True, entry="one more")] * 40)

    assert len(after.learned.records) == MAX_ENTRIES
    assert len(after.learned.records["one more"].observations) == 32
    assert len(after.learned.window) <= WINDOW
    assert "0" not in after.learned.records


MODEL = load_model()
