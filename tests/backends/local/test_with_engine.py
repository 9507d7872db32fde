"""The backend against the real engine with the real model: one process for all of these."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from backends.registry import BackendFactory, BackendOptions
from orchestration.core import Backend, Delta
from orchestration.core.errors import ContextTooLong
from tests.backends.calls import ask, chat_call, completion_call

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def engine_address(short_folder: Path, language_model: Path) -> Iterator[str]:
    address = f"unix://{short_folder / 'real-engine.sock'}"
    options = ["--listen", address, "--model", str(language_model), "--name", "smollm2-135m-instruct"]
    # In bf16 logits of this model's size lie 0.125 apart, and "The" leads the answer about France by 0.08.
    options += ["--dtype", "float32", "--device", "cpu", "--kv-memory-mb", "64"]
    command = [sys.executable, "-m", "backends.engine", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            events = (json.loads(line)["event"] for line in process.stdout)
            assert "ready" in events, "the engine ended before it was ready"
            yield address
        finally:
            process.terminate()


@pytest.fixture
async def factory(engine_address: str) -> AsyncIterator[BackendFactory]:
    factory = BackendFactory()
    yield factory
    await factory.aclose()


@pytest.fixture
def backend(factory: BackendFactory, engine_address: str, language_model: Path) -> Backend:
    options = BackendOptions(type="engine", model="m", engine_address=engine_address, model_path=language_model)
    return factory.create(options)


async def test_the_capital_of_france_is_paris(backend: Backend) -> None:
    assert await backend.check_health() is None

    answer = await ask(backend, chat_call(QUESTION, temperature=0, max_tokens=32))

    assert "Paris" in answer.text()
    assert answer.start.model == "smollm2-135m-instruct"
    assert answer.finish.reasons == {0: "stop"}
    assert answer.finish.usage is not None
    assert 0 < answer.finish.usage.completion_tokens <= 32


async def test_the_same_prompt_again_is_cached_for_its_tenant_alone(backend: Backend) -> None:
    prompt = "A story of a lighthouse keeper and the sea, told slowly and with care, begins on a night in winter."
    cached = []
    for tenant in ("a", "a", "b"):
        answer = await ask(backend, completion_call(prompt, tenant=tenant, temperature=0, max_tokens=1))
        assert answer.finish.usage is not None
        cached.append(answer.finish.usage.cached_tokens)

    assert cached[0] == cached[2] == 0
    assert cached[1] > 0


async def test_a_stop_string_cuts_what_greedy_would_say(backend: Backend) -> None:
    whole = await ask(backend, chat_call(QUESTION, temperature=0, max_tokens=32))
    cut = await ask(backend, chat_call(QUESTION, temperature=0, max_tokens=32, stop=" is"))

    assert cut.text() == whole.text().partition(" is")[0]
    assert cut.finish.reasons == {0: "stop"}


async def test_logprobs_of_greedy_name_its_own_tokens_first(backend: Backend) -> None:
    answer = await ask(backend, chat_call(QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2))

    entries = [entry for delta in answer.deltas for entry in delta.logprobs or ()]
    assert "".join(entry["token"] for entry in entries) == answer.text()
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries)
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_a_seed_repeats_every_choice_and_choices_differ(backend: Backend) -> None:
    async def choices() -> list[str]:
        answer = await ask(backend, completion_call("Once upon a time", n=3, seed=7, max_tokens=12))
        return [answer.text(choice) for choice in range(3)]

    first, second = await choices(), await choices()

    assert first == second
    assert len(set(first)) == 3


async def test_one_token_is_one_token(backend: Backend) -> None:
    answer = await ask(backend, chat_call("Count to ten.", temperature=0, max_tokens=1))

    assert answer.finish.reasons == {0: "length"}
    assert answer.finish.usage is not None
    assert answer.finish.usage.completion_tokens == 1


async def test_leaving_frees_the_pages(backend: Backend, factory: BackendFactory) -> None:
    async with aclosing(backend(chat_call("Tell me a long story.", max_tokens=1000, ignore_eos=True))) as events:
        async for event in events:
            if isinstance(event, Delta):
                break

    async with asyncio.timeout(60):
        while True:
            stats = await factory.engine_stats()
            assert stats is not None
            if stats["running"] == stats["waiting"] == stats["pages_used"] == 0:
                break
            await asyncio.sleep(0.02)


async def test_a_prompt_over_the_context_is_refused_and_the_next_call_works(backend: Backend) -> None:
    with pytest.raises(ContextTooLong):
        await ask(backend, completion_call([17] * 9000))

    assert (await ask(backend, chat_call("Hi", temperature=0, max_tokens=2))).text()
