"""Conversations that end in the same words and want different answers, from `benchmarks/data/semcache`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cache.partition import question_of, why_ineligible
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
