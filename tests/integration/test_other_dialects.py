"""Anthropic's client and the responses API against the engine itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.integration.conftest import Served

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
CHAT: Any = {"model": MODEL, "max_tokens": 24, "messages": [{"role": "user", "content": QUESTION}]}
GREEDY: Any = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def client(whole: Served) -> Iterator[Anthropic]:
    with Anthropic(base_url=whole.url, api_key="a-tenant-of-this-file", max_retries=0, timeout=120) as client:
        yield client


def test_the_engine_answers_anthropics_client_with_true_counts_from_the_first_event(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=CHAT["messages"])
    with client.messages.stream(**CHAT, **GREEDY) as stream:
        events = list(stream)
        message = stream.get_final_message()

    assert message.content[0].type == "text"
    assert "Paris" in message.content[0].text
    assert message.stop_reason == "end_turn"
    begun = next(event for event in events if event.type == "message_start").message.usage
    assert (begun.input_tokens + (begun.cache_read_input_tokens or 0)) == counted.input_tokens
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_an_answer_bought_by_one_client_serves_the_other(client: Anthropic, whole: Served) -> None:
    bought = client.messages.create(**CHAT, **GREEDY)
    with OpenAI(base_url=f"{whole.url}/v1", api_key="a-tenant-of-this-file", max_retries=0) as other:
        reply = other.chat.completions.with_raw_response.create(**CHAT, temperature=0)

    assert reply.headers["x-lamina-cache"] == "exact"
    assert bought.content[0].type == "text"
    assert reply.parse().choices[0].message.content == bought.content[0].text


def test_a_stop_sequence_is_named_by_the_engine_and_by_the_cache(client: Anthropic) -> None:
    replies = [client.messages.with_raw_response.create(**CHAT, **GREEDY, stop_sequences=["Par"]) for _ in range(2)]

    assert [reply.headers["x-lamina-cache"] for reply in replies] == ["miss", "exact"]
    for reply in replies:
        message = reply.parse()
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Par")


def test_the_engine_answers_responses(whole: Served) -> None:
    with OpenAI(base_url=f"{whole.url}/v1", api_key="a-tenant-of-this-file", max_retries=0, timeout=120) as client:
        response = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=24)

    assert "Paris" in response.output_text
    assert response.usage is not None
    assert response.usage.input_tokens > 0


def test_the_engines_tokens_are_shown(whole: Served) -> None:
    there = httpx.post(f"{whole.url}/tokenize", json={"model": MODEL, "prompt": QUESTION}, timeout=30).json()
    back = httpx.post(f"{whole.url}/detokenize", json={"model": MODEL, "tokens": there["tokens"]}, timeout=30).json()

    assert there["max_model_len"] >= 2048
    assert back == {"prompt": QUESTION}
