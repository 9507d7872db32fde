"""Generations: new requests go to the newest pipeline, old ones end in theirs, and only then is it closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.exchange import Receive, Scope, Send
from gateway.generations import Generation, Generations


@dataclass
class Pipeline:
    """An application whose answers wait for a gate, and its parts."""

    name: str
    answered: list[str]
    fault: Exception | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    retired: asyncio.Event = field(default_factory=asyncio.Event)
    is_started: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate.wait()
        assert not self.ended.is_set()
        self.answered.append(self.name)

    async def start(self) -> None:
        self.is_started = True
        if self.fault is not None:
            raise self.fault

    def describe_backends(self) -> list[dict[str, Any]]:
        return []

    async def take_feedback(self, params: Any, payload: bytes) -> tuple[Any, bytes]:
        return params, payload

    def retire(self) -> None:
        self.retired.set()

    async def aclose(self) -> None:
        self.ended.set()

    def generation(self) -> Generation:
        return Generation(self, self)


async def receive() -> dict[str, object]:
    return {}


async def send(_message: object) -> None:
    pass


def request(generations: Generations) -> asyncio.Task[None]:
    return asyncio.create_task(generations({}, receive, send))


async def test_old_calls_end_in_the_old_pipeline_which_is_closed_after_them() -> None:
    answered: list[str] = []
    old, new = Pipeline("old", answered), Pipeline("new", answered)
    new.gate.set()
    generations = Generations(old.generation())
    first = request(generations)
    await asyncio.sleep(0)

    await generations.prepare(new.generation())
    assert generations.commit()
    await request(generations)
    assert (answered, old.ended.is_set()) == (["new"], False)
    old.gate.set()
    await first
    await asyncio.wait_for(old.ended.wait(), 5)

    assert answered == ["new", "old"]
    assert not new.ended.is_set()
    await generations.aclose()
    assert new.ended.is_set()


async def test_a_pipeline_that_does_not_start_is_closed_and_never_used() -> None:
    answered: list[str] = []
    old, bad = Pipeline("old", answered), Pipeline("bad", answered, fault=OSError("no"))
    old.gate.set()
    generations = Generations(old.generation())

    with pytest.raises(OSError, match="no"):
        await generations.prepare(bad.generation())

    assert bad.ended.is_set()
    assert not generations.commit()
    await request(generations)
    assert answered == ["old"]


async def test_what_is_discarded_or_prepared_over_is_closed() -> None:
    old, second, third = (Pipeline(name, []) for name in ("old", "second", "third"))
    generations = Generations(old.generation())

    await generations.prepare(second.generation())
    await generations.prepare(third.generation())
    assert (second.ended.is_set(), third.ended.is_set()) == (True, False)
    await generations.discard()

    assert third.ended.is_set()
    assert not generations.commit()


async def test_the_end_closes_pipelines_that_still_have_calls() -> None:
    old, new = Pipeline("old", []), Pipeline("new", [])
    generations = Generations(old.generation())
    stuck = request(generations)
    await asyncio.sleep(0)
    await generations.prepare(new.generation())
    generations.commit()

    await generations.aclose()

    assert old.ended.is_set()
    assert new.ended.is_set()
    stuck.cancel()
    await asyncio.wait([stuck])
