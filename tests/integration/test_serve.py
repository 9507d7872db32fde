"""The defaults, served for real: the engine answers, the caches answer after it, and each death is bridged."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI

from tests.integration.conftest import Served, until

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def client(whole: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{whole.url}/v1", api_key="one-tenant", max_retries=0, timeout=120) as client:
        yield client


def ask(client: OpenAI, question: str, **more: Any) -> tuple[str, httpx.Headers]:
    more = {"temperature": 0, "max_tokens": 24} | more
    messages: list[Any] = [{"role": "user", "content": question}]
    system = more.pop("system", None)
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    reply = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, **more)
    return reply.parse().choices[0].message.content or "", reply.headers


def stream(client: OpenAI, question: str, **headers: str) -> tuple[str, httpx.Headers]:
    messages: list[Any] = [{"role": "user", "content": question}]
    reply = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=24, stream=True, extra_headers=headers
    )
    chunks = reply.parse()
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), reply.headers


def unheard() -> str:
    """Give a question that no cache has an answer to."""
    return f"Write a long story about the ship {uuid.uuid4().hex[:6]}."


def remembered(client: OpenAI, question: str) -> httpx.Headers:
    """Ask the caches alone, until the trailing insert of an earlier answer is there."""

    def look() -> httpx.Headers | None:
        try:
            return ask(client, question, extra_headers={"cache-control": "only-if-cached"})[1]
        except APIStatusError as exc:
            if exc.status_code != 504:  # 504: not in the cache
                raise
            return None

    found = until(look)
    assert isinstance(found, httpx.Headers)
    return found


def test_the_capital_of_france_is_paris_whole_then_from_the_caches(client: OpenAI) -> None:
    answer, headers = ask(client, QUESTION)
    assert "Paris" in answer
    assert headers["x-lamina-cache"] == "miss"
    assert headers["x-lamina-backend"] == "engine"

    again, headers = ask(client, QUESTION)
    assert again == answer
    assert headers["x-lamina-cache"] == "exact"

    streamed, headers = stream(client, QUESTION)
    assert streamed == answer
    assert headers["x-lamina-cache"] == "exact"

    headers = remembered(client, "What's the capital of France?")
    assert headers["x-lamina-cache"] == "semantic"
    assert float(headers["x-lamina-similarity"]) >= float(headers["x-lamina-threshold"]) == 0.95


def test_paris_is_streamed_by_the_engine_too(client: OpenAI) -> None:
    answer, headers = stream(client, QUESTION, **{"cache-control": "no-cache"})

    assert "Paris" in answer
    assert headers["x-lamina-cache"] == "bypass"


def test_another_question_tenant_prompt_or_temperature_never_hits(client: OpenAI, whole: Served) -> None:
    ask(client, QUESTION)
    remembered(client, "What's the capital of France?")

    others = []
    for tenant, question in (("second-tenant", QUESTION), ("third-tenant", "What's the capital of France?")):
        with OpenAI(base_url=f"{whole.url}/v1", api_key=tenant, max_retries=0) as other:
            others.append(ask(other, question))
    others += [
        ask(client, "What is the capital of Germany?"),
        ask(client, QUESTION, system="Answer in one word."),
        ask(client, QUESTION, temperature=0.2),
        ask(client, QUESTION, temperature=0.9),
    ]

    assert [headers["x-lamina-cache"] for _, headers in others] == ["miss"] * len(others)


def test_both_models_are_listed_and_embeddings_answered(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "all-minilm-l6-v2"]

    embedded = client.embeddings.create(model="all-minilm-l6-v2", input=["a", "b"])

    assert [len(item.embedding) for item in embedded.data] == [384, 384]


def test_every_part_is_ready_and_gives_its_numbers(whole: Served) -> None:
    ready = httpx.get(f"{whole.url}/health/ready", timeout=30)
    page = httpx.get(f"{whole.url}/metrics", timeout=30).text

    assert ready.json()["parts"] == dict.fromkeys(
        ["store", "log", "log_shipper", "engine", "cache_owner", "keys"], "ok"
    )
    for part in ("engine", "cache_owner", "log_shipper"):
        assert f'lamina_part_up{{part="{part}"}} 1.0' in page


def test_the_record_of_a_call_names_every_layer(client: OpenAI, whole: Served) -> None:
    _, headers = ask(client, unheard())

    record = httpx.get(f"{whole.url}/admin/calls/{headers['x-lamina-call']}", timeout=30).json()

    assert record["backend"] == "engine"
    layers = ["call_log", "limits", "input_checks", "exact_cache", "semantic_cache", "output_checks", "router"]
    assert [span["name"] for span in record["spans"]] == layers


def test_a_client_that_leaves_frees_its_pages(client: OpenAI, whole: Served) -> None:
    def pages_used() -> float:
        page = httpx.get(f"{whole.url}/metrics", timeout=30).text
        line = next(line for line in page.splitlines() if line.startswith("lamina_engine_pages_used "))
        return float(line.split()[1])

    body = {"model": MODEL, "messages": [{"role": "user", "content": unheard()}], "stream": True, "max_tokens": 500}
    with httpx.stream("POST", f"{whole.url}/v1/chat/completions", json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        assert pages_used() > 0

    until(lambda: pages_used() == 0)


def test_a_killed_engine_costs_calls_in_flight_an_error_and_the_caches_still_serve(
    client: OpenAI, whole: Served
) -> None:
    ask(client, QUESTION)
    begun, broke = threading.Event(), threading.Event()
    seen: list[str] = []

    def read() -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": unheard()}], "stream": True}
        with httpx.stream("POST", f"{whole.url}/v1/chat/completions", json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                seen.append(line)
                begun.set()
        broke.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)

    is_back = whole.kill_child("engine")

    assert broke.wait(30)
    reader.join()
    assert any('"error"' in line for line in seen)
    assert not any('"finish_reason":"' in line for line in seen)
    assert ask(client, QUESTION)[1]["x-lamina-cache"] == "exact"
    with pytest.raises(APIStatusError) as caught:
        ask(client, unheard())
    assert caught.value.status_code == 503
    until(is_back)
    until(whole.is_ready)
    assert "Paris" in ask(client, QUESTION, extra_headers={"cache-control": "no-cache"})[0]


def test_a_killed_cache_owner_costs_semantic_hits_alone_and_its_entries_come_back(
    client: OpenAI, whole: Served
) -> None:
    ask(client, QUESTION)
    remembered(client, "What's the capital of France?")

    is_back = whole.kill_child("cache-owner")

    _, headers = ask(client, unheard(), max_tokens=2)
    assert headers["x-lamina-cache"] == "miss"
    until(is_back)
    until(whole.is_ready)
    assert remembered(client, "What's France's capital?")["x-lamina-cache"] == "semantic"


def test_a_killed_worker_comes_back_on_the_same_port(client: OpenAI, whole: Served) -> None:
    is_back = whole.kill_child("worker-0")

    until(is_back)
    until(whole.is_ready)
    assert ask(client, QUESTION)[1]["x-lamina-cache"] == "exact"
