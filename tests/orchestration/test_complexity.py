"""How hard a request is: features, score, size, and the measured share of right decisions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.complexity.__main__ import accuracy, choose_bars, confusion, read_prompts
from orchestration.core import Kind, Request
from orchestration.core.complexity import LARGE_FROM, MEDIUM_FROM, Features, ModelChoice, Size, features_of, score_of

CHOICE = ModelChoice(small="s", medium="m", large="l")


def request(content: object, **fields: object) -> Request:
    body = {"model": "auto", "messages": [{"role": "user", "content": content}], **fields}
    return Request(kind=Kind.CHAT, dialect="openai.chat", fields=body)


def test_the_bars_are_those_that_one_half_of_the_labelled_set_chooses() -> None:
    assert choose_bars([one for one in read_prompts() if one.part == "choose"]) == (MEDIUM_FROM, LARGE_FROM)


def test_the_other_half_is_told_apart_and_small_is_never_taken_for_large() -> None:
    counts = confusion([one for one in read_prompts() if one.part == "report"], CHOICE)

    assert accuracy(counts) >= 0.8
    assert counts[Size.SMALL, Size.LARGE] == counts[Size.LARGE, Size.SMALL] == 0


@given(st.text(max_size=300))
def test_any_text_has_one_size_and_always_the_same(text: str) -> None:
    model, decision = CHOICE.choose(request(text))

    assert CHOICE.choose(request(text)) == (model, decision)
    assert decision["model"] == model == {"small": "s", "medium": "m", "large": "l"}[decision["size"]]


@given(st.text(max_size=300))
def test_a_decision_is_computed_again_from_its_record(text: str) -> None:
    decision = json.loads(json.dumps(CHOICE.choose(request(text))[1]))

    choice = ModelChoice("s", "m", "l", medium_from=decision["medium_from"], large_from=decision["large_from"])
    size, score = choice.decide(Features(**decision["features"]))

    assert (size.value, round(score, 4)) == (decision["size"], decision["score"])


@pytest.mark.parametrize("name", ["chars", "questions", "constraints", "code", "maths", "deep_words", "turns", "tools"])
def test_more_of_anything_never_makes_a_request_easier(name: str) -> None:
    counted: list[dict[str, Any]] = [{name: count} for count in range(12)]

    scores = [score_of(Features(**counts)) for counts in counted]

    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


def test_all_shapes_of_requests_are_read() -> None:
    parts = request([{"type": "text", "text": "Why?"}, {"type": "image_url", "image_url": {"url": "x"}}])
    completion = Request(kind=Kind.COMPLETION, dialect="openai.completions", fields={"model": "m", "prompt": "Why?"})
    tools = request("Why?", tools=[{}, {}], response_format={"type": "json_schema"})

    assert (features_of(parts).chars, features_of(completion).chars) == (4, 4)
    assert (features_of(tools).tools, features_of(tools).has_schema) == (2, True)
    assert features_of(request(None)) == Features(turns=1)


def test_a_huge_text_costs_no_more_than_what_is_read_of_it() -> None:
    hostile = "a " * 500_000 + "{[(" * 100_000

    begun = time.thread_time()
    features = features_of(request(hostile))

    assert features.chars == len(hostile)
    assert time.thread_time() - begun < 5.0  # seconds, on any machine: a pattern that explodes takes minutes
