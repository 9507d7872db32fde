from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.key import DENIED_FIELDS, NUMBERS, exact_key
from orchestration.core import Call, Kind
from tests.cache.scripted import a_call

NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name not in DENIED_FIELDS and name != "model")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(NAMES, JSON, max_size=5)


def key_of(call: Call, *, route: str = "r", policy: str = "p") -> str:
    return exact_key(call, route=route, policy=policy)


def as_told(value: object) -> str:
    """Tell apart what Python's == does not (1, 1.0, True), and take NaN for itself."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{name!r}:{as_told(item)}" for name, item in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_told(item) for item in value) + "]"
    return f"{type(value).__name__}:{value!r}"


def reversed_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_order(item) for name, item in reversed(value.items())}
    return [reversed_order(item) for item in value] if isinstance(value, list) else value


@given(FIELDS, NAMES, JSON)
def test_any_other_field_makes_another_key(fields: dict[str, Any], name: str, value: Any) -> None:
    before, after = a_call(**{"x": 1, **fields}), a_call(**{"x": 1, **fields, name: value})

    is_same = as_told(dict(before.request.fields)) == as_told(dict(after.request.fields))
    assert (key_of(before) == key_of(after)) == is_same


@given(FIELDS, st.dictionaries(st.sampled_from(sorted(DENIED_FIELDS)), JSON))
def test_denied_fields_never_change_the_key(fields: dict[str, Any], denied: dict[str, Any]) -> None:
    assert key_of(a_call(**fields)) == key_of(a_call(**{**fields, **denied}))


@given(FIELDS)
def test_the_order_of_fields_never_changes_the_key(fields: dict[str, Any]) -> None:
    call = a_call(**fields)
    turned = replace(call, request=replace(call.request, fields=reversed_order(dict(call.request.fields))))

    assert key_of(call) == key_of(turned)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [None, 0, 1, True, "1", 1e-9, 2**70, 2**70 + 1]),
        ("weight", [None, 0, 0.0, -0.0, 1, 1.0, True, "1", 1e-9]),
        ("max_tokens", [16, 4000]),
        ("num_ctx", [2048, 8192]),
        ("top_p", [0.1, 0.9]),
        ("stop", [["a"], "a", [], [["a"]]]),
        ("n", [1, 2]),
        ("tool_choice", ["auto", "none", {"type": "function"}]),
        ("seed", [1, 2, 2**70, 2**70 + 1]),
        ("logprobs", [True, False, None]),
        ("input", [["a", "b"], ["ab"], "ab", ["a,b"]]),
        ("weird", [math.nan, math.inf, -math.inf, "NaN", "Infinity", None]),
        ("half", ["\ud83d", "\ude00", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "\\ud83d"]),
    ],
)
def test_values_that_differ_make_keys_that_differ(name: str, values: list[Any]) -> None:
    calls = [a_call()] + [a_call(**{name: value}) for value in values]

    assert len({key_of(call) for call in calls}) == len(calls)


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_how_a_sampling_number_is_spelled_never_changes_the_key(name: str) -> None:
    def keys(*values: Any) -> set[str]:
        return {key_of(a_call(**{name: value})) for value in values}

    assert len(keys(0, 0.0, -0.0)) == len(keys(1, 1.0)) == 1
    assert len(keys(0, 1, True)) == 3


def test_nan_equals_itself_in_a_key() -> None:
    assert key_of(a_call(x=math.nan)) == key_of(a_call(x=float("nan")))


def test_metadata_inside_a_message_counts() -> None:
    plain = a_call(messages=[{"role": "user", "content": "x"}])
    tagged = a_call(messages=[{"role": "user", "content": "x", "metadata": {"a": 1}}])

    assert key_of(plain) != key_of(tagged)


def test_tenant_namespace_kind_alias_route_and_policy_each_make_another_key() -> None:
    keys = [
        key_of(a_call()),
        key_of(a_call(tenant="t2")),
        key_of(a_call(namespace="n")),
        key_of(a_call(kind=Kind.COMPLETION)),
        key_of(a_call(model="other")),
        key_of(a_call(), route="r2"),
        key_of(a_call(), policy="p2"),
    ]

    assert len(set(keys)) == len(keys)


def test_parts_of_the_key_do_not_run_into_each_other() -> None:
    assert key_of(a_call(tenant="ab", namespace="c")) != key_of(a_call(tenant="a", namespace="bc"))
    assert key_of(a_call(), route="ab", policy="c") != key_of(a_call(), route="a", policy="bc")


def test_the_dialect_is_no_part_of_the_key() -> None:
    assert key_of(a_call(dialect="openai")) == key_of(a_call(dialect="anthropic"))


def test_the_key_holds_nothing_of_the_prompt_and_has_one_length() -> None:
    key = key_of(a_call(messages=[{"role": "user", "content": "my secret " * 10_000}]))

    assert len(key) == 64
    assert "secret" not in key
