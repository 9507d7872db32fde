"""A client's `priority` goes from the HTTP body to the engine's order of service."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from backends.engine.config import EngineConfig
from backends.engine.sched.scheduler import Scheduler
from backends.engine.wire import read_submission
from backends.local.backend import LocalBackend
from backends.local.text import LocalText
from cache.key import exact_key
from gateway.dialects.openai_chat import OpenAIChat
from orchestration.core.call import Call
from orchestration.core.errors import InvalidRequest
from tests.backends.calls import ask, chat_call
from tests.backends.fake_engine import FakeEngine, step


def _call(content: str, **fields: object) -> Call:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}
    return replace(chat_call(), request=OpenAIChat().parse(json.dumps(body).encode()))


async def test_the_lower_priority_of_a_body_runs_first(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.on_submit = lambda message: [step(message["id"], [5], finish="length")]
    for content, fields in (("plain", {}), ("later", {"priority": 3}), ("sooner", {"priority": -2})):
        await ask(backend, _call(content, **fields))
    scheduler = Scheduler(
        EngineConfig(vocab_size=49152, max_len=256, eos_ids=frozenset({2}), num_pages=64, max_num_seqs=1)
    )
    for key, message in enumerate(engine.submitted, start=1):
        scheduler.submit(key, read_submission(message), seed=0)

    assert [message["priority"] for message in engine.submitted] == [0, -3, 2]
    assert [row.key for row in scheduler.schedule().rows] == [3]


@pytest.mark.parametrize("priority", [1001, -1001])
async def test_a_priority_out_of_bounds_is_refused_by_name(
    engine: FakeEngine, backend: LocalBackend, priority: int
) -> None:
    with pytest.raises(InvalidRequest, match="'priority' must be a whole number from -1000 to 1000"):
        await ask(backend, _call("x", priority=priority))

    assert engine.submitted == []


@pytest.mark.parametrize("priority", ["high", 1.5, True])
def test_a_priority_that_is_no_whole_number_is_refused_at_the_door(priority: object) -> None:
    with pytest.raises(InvalidRequest, match="priority"):
        _call("x", priority=priority)


def test_the_priority_is_no_part_of_the_exact_key() -> None:
    plain, hurried = (exact_key(_call("x", **fields), route="r", policy="p") for fields in ({}, {"priority": 7}))

    assert plain == hurried
