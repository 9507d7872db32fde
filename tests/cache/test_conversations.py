"""Conversations that end in the same words and want different answers, from `benchmarks/data/semcache`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.context import MultiTurn, stands_alone, without_history
from cache.partition import Question, question_of, why_ineligible
from orchestration.core import Call
from tests.cache.scripted import a_call

CONVERSATIONS = Path(__file__).parents[2] / "benchmarks" / "data" / "semcache" / "conversations.jsonl"


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()]


def ending(messages: list[dict[str, str]]) -> Call:
    return a_call(messages=messages, temperature=0)


def partition_of(messages: list[dict[str, str]]) -> str:
    call = ending(messages)
    assert why_ineligible(call) is None
    return question_of(call, route="route", policy="policy").partition


def test_no_conversation_trap_can_be_served_for_its_twin() -> None:
    traps = [row for row in rows() if not row["same_answer"]]

    met = [row["id"] for row in traps if partition_of(row["a"]) == partition_of(row["b"])]

    assert len(traps) == 90
    assert met == []


@pytest.mark.parametrize("place", [0, 1])
def test_one_word_more_in_the_history_is_another_conversation(place: int) -> None:
    messages = rows()[0]["a"]
    changed = [dict(message) for message in messages]
    changed[place]["content"] += " indeed"

    assert partition_of(messages) != partition_of(changed)


def test_the_last_question_alone_may_differ() -> None:
    messages = rows()[0]["a"]
    reworded = [*messages[:-1], {"role": "user", "content": "please cancel that one"}]

    assert partition_of(messages) == partition_of(reworded)


def relaxed(messages: list[dict[str, str]]) -> Question:
    return question_of(ending(messages), route="route", policy="policy", multi_turn=MultiTurn.RELAXED)


def alone(messages: list[dict[str, str]]) -> str:
    """Give the partition of the last question where it is asked without a history."""
    kept = without_history(messages)
    assert kept is not None
    return relaxed([dict(message) for message in kept]).partition


def test_in_relaxed_mode_no_trap_can_be_served_for_its_twin_nor_for_its_last_question_asked_alone() -> None:
    sides = [(row[one], row[other]) for row in rows() for one, other in (("a", "b"), ("b", "a"))]
    traps = [pair for row, pair in zip([row for row in rows() for _ in "ab"], sides, strict=True) if is_trap(row)]

    met = [asked for asked, kept in traps if relaxed(asked).searched in (relaxed(kept).partition, alone(kept))]

    assert len(traps) == 180
    assert met == []


def test_in_relaxed_mode_a_question_that_stands_alone_is_looked_for_without_its_history() -> None:
    gained = [row for row in rows() if row["same_answer"] and relaxed(row["a"]).searched == alone(row["b"])]

    assert {row["subtype"] for row in gained} == {"irrelevant_history"}
    assert len(gained) == 10


def is_trap(row: dict[str, Any]) -> bool:
    return not row["same_answer"]


def a_follow_up(text: str, *, user: str = "Hi", said: str = "Hello.", system: str = "Be brief.") -> Question:
    return relaxed(
        [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
            {"role": "assistant", "content": said},
            {"role": "user", "content": text},
        ]
    )


@settings(deadline=None)
@given(user=st.text(max_size=20), said=st.text(max_size=20))
def test_what_a_conversation_is_answered_is_never_kept_where_others_ask(user: str, said: str) -> None:
    question = a_follow_up("Does Flixora offer a free trial?", user=user, said=said)

    assert question.asked_alone is not None
    assert question.partition != question.searched == a_follow_up("Does Flixora offer a free trial?").searched


@settings(deadline=None)
@given(text=st.text(min_size=1, max_size=30).filter(str.strip), said=st.text(min_size=1, max_size=10))
def test_what_the_assistant_said_always_counts_where_a_question_is_kept(text: str, said: str) -> None:
    assert a_follow_up(text, said=said).partition != a_follow_up(text, said=said + "x").partition


def test_other_instructions_are_another_place_also_for_a_question_that_stands_alone() -> None:
    text = "Does Flixora offer a free trial?"

    assert a_follow_up(text, system="Be brief.").searched != a_follow_up(text, system="Answer in French.").searched


def test_case_spacing_and_stops_of_earlier_turns_do_not_count_in_relaxed_mode() -> None:
    one, same = (
        a_follow_up("cancel it", user="I have a  Flixora plan."),
        a_follow_up("cancel it", user="i have a flixora plan"),
    )

    assert one == same
    assert one.partition != a_follow_up("cancel it", user="i have a flixora-plan").partition


def test_a_question_without_a_history_is_looked_for_where_it_is_kept() -> None:
    question = relaxed([{"role": "user", "content": "Does Flixora offer a free trial?"}])

    assert (question.asked_alone, question.searched) == (None, question.partition)


@pytest.mark.parametrize(
    "text",
    [
        "cancel it",
        "is there an early exit fee?",
        "Does Flixora offer it?",
        "Does Flixora offer a free trial",
        "And does Flixora offer a free trial?",
        "Does my Flixora plan offer a trial?",
        "What time does it open on Sunday?",
        "What is open on Monday?",
        "Flixora offers a free trial?",
        "Flixora 提供免费试用吗?",
        "Does Flixora offer the second one?",
        "Is Flixora open today?",
    ],
)
def test_a_question_that_leans_on_something_does_not_stand_alone(text: str) -> None:
    assert not stands_alone(text)
