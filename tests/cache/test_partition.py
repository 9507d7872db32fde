from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.partition import question_of, why_ineligible
from orchestration.core import Call, Controls, Kind, Request

QUESTION = "What is the capital of France?"


def a_call(*, kind: Kind = Kind.CHAT, tenant: str = "t", namespace: str = "", **fields: Any) -> Call:
    whole = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": QUESTION}], **fields}
    request = Request(kind, "openai", {name: value for name, value in whole.items() if value is not ...})
    return Call("c", "r", tenant, request, 0.0, 0.0, controls=Controls(namespace=namespace))


def partition(call: Call, *, route: str = "route", policy: str = "policy") -> str:
    return question_of(call, route=route, policy=policy).partition


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.3},
        {"n": 1},
        {"tools": []},
        {"logprobs": False},
        {"messages": user([text_part("What is "), text_part("this?")])},
        {"messages": [{"role": "system", "content": "Be brief."}, *user(QUESTION)]},
    ],
)
def test_plain_cold_chats_are_eligible(fields: dict[str, Any]) -> None:
    assert why_ineligible(a_call(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temperature": ...}, "temperature_unstated"),
        ({"temperature": None}, "temperature_unstated"),
        ({"temperature": False}, "temperature_unstated"),
        ({"temperature": "0"}, "temperature_unstated"),
        ({"temperature": 0.31}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"n": 2}, "several_answers"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"audio": {"voice": "v"}}, "audio"),
        ({"web_search_options": {"a": 1}}, "web_search_options"),
        ({"messages": []}, "last_message"),
        ({"messages": [{"role": "assistant", "content": QUESTION}]}, "last_message"),
        ({"messages": user(None)}, "last_message"),
        ({"messages": user([])}, "last_message"),
        ({"messages": user([text_part("look:"), {"type": "image_url", "image_url": {"url": "u"}}])}, "last_message"),
        ({"messages": user("  \n")}, "empty_text"),
        ({"messages": user("word " * 10_000)}, "too_long"),
        ({"messages": user("half a pair \ud800")}, "unreadable"),
    ],
)
def test_other_chats_are_not_and_the_reason_is_named(fields: dict[str, Any], reason: str) -> None:
    assert why_ineligible(a_call(**fields)) == reason


@pytest.mark.parametrize("kind", [Kind.COMPLETION, Kind.EMBEDDING, Kind.RERANK])
def test_other_kinds_are_not_eligible(kind: Kind) -> None:
    assert why_ineligible(a_call(kind=kind)) == "kind"


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_last_user_text_is_no_part_of_the_partition(one: str, other: str) -> None:
    assert partition(a_call(messages=user(one))) == partition(a_call(messages=user(other)))


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": "other"},
        {"namespace": "other"},
        {"model": "other"},
        {"temperature": 0.1},
        {"max_tokens": 16},
        {"seed": 1},
        {"top_p": 0.9},
        {"stop": ["\n"]},
        {"response_format": {"type": "json_object"}},
        {"a_field_of_tomorrow": 1},
        {"messages": [{"role": "system", "content": "Answer in French."}, *user(QUESTION)]},
        {"messages": [*user("Hello"), {"role": "assistant", "content": "Hi"}, *user(QUESTION)]},
        {"messages": user(QUESTION, name="ann")},
        {"messages": user([text_part(QUESTION)])},
    ],
)
def test_everything_else_is(fields: dict[str, Any]) -> None:
    assert partition(a_call(**fields)) != partition(a_call())


def test_how_the_temperature_is_spelled_is_no_part_of_it() -> None:
    assert partition(a_call(temperature=0.0)) == partition(a_call(temperature=0))


@pytest.mark.parametrize("fields", [{"stream": True}, {"user": "u"}, {"metadata": {"a": "b"}}, {"store": True}])
def test_what_cannot_change_an_answer_is_not(fields: dict[str, Any]) -> None:
    assert partition(a_call(**fields)) == partition(a_call())


def test_route_and_policy_are_part_of_the_partition() -> None:
    partitions = {
        partition(a_call()),
        partition(a_call(), route="other"),
        partition(a_call(), policy="other"),
    }

    assert len(partitions) == 3


def test_histories_that_differ_in_one_earlier_answer_differ() -> None:
    def call(answer: str) -> Call:
        return a_call(messages=[*user("Cancel it?"), {"role": "assistant", "content": answer}, *user("Yes.")])

    assert partition(call("Your order?")) != partition(call("Your account?"))


def test_a_question_asked_again_names_the_same_entry_and_another_one_does_not() -> None:
    def entry(call: Call) -> str:
        return question_of(call, route="r", policy="p").entry

    again = replace(a_call(), id="another-call")

    assert entry(again) == entry(a_call())
    assert entry(a_call(messages=user("And of Spain?"))) != entry(a_call())
    assert entry(a_call(tenant="other")) != entry(a_call())
