"""Faults that other caches were reported for beyond wrong neighbours: who shares, what is kept, what is still found."""

from __future__ import annotations

from typing import Any

import pytest

from cache.memory_store import MemoryStore
from cache.partition import question_of, why_ineligible
from cache.policies.build import build_policy
from cache.policies.features import Features
from cache.quarantine import quarantine, semantic_key
from cache.semantic import IndexFault, SemanticCache
from orchestration.core import CacheStatus, Call, Delta, Finish, Start
from tests.cache.scripted import Scripted, a_call
from tests.cache.test_semantic import FRANCE, WHATS, TableIndex, a_cache, a_question


async def asked(cache: SemanticCache, core: Scripted, text: str, **more: Any) -> Call:
    call = a_question(text, f"{text} {sorted(more)}", **more)
    async for _ in cache(call, core):
        pass
    await cache.aclose()
    return call


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},  # one prompt, two models
        {"top_p": 0.5},
        {"seed": 7},
        {"temperature": 0.2},
        {"max_tokens": 16},  # the first caller's limit would cut everybody's answer
        {"stop": ["\n"]},
        {"response_format": {"type": "json_object"}},
        {"frequency_penalty": 1},
        {"logit_bias": {"5": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_can_change_an_answer_is_another_place(change: dict[str, Any]) -> None:
    index, store, core = TableIndex(), MemoryStore(), Scripted()
    await asked(a_cache(index, store), core, FRANCE)

    again = await asked(a_cache(index, store), core, WHATS, **change)

    assert again.notes.cache.status is CacheStatus.MISS
    assert again.notes.cache.candidates == []


def test_an_answer_never_crosses_system_prompts_tenants_or_histories() -> None:
    plain = [{"role": "user", "content": FRANCE}]
    calls = [
        a_call(messages=plain, temperature=0),
        a_call(messages=plain, temperature=0, tenant="t2"),
        a_call(messages=plain, temperature=0, namespace="n"),
        a_call(messages=[{"role": "system", "content": "Be rude."}, *plain], temperature=0),
        a_call(messages=[{"role": "assistant", "content": "Hm."}, *plain], temperature=0),
    ]

    assert len({question_of(call, route="r", policy="p").partition for call in calls}) == len(calls)


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": None}, {"temperature": 1}, {"temperature": 0, "tools": [{"x": 1}]}]
)
def test_a_temperature_that_is_not_stated_is_not_zero_and_tools_are_left_alone(fields: dict[str, Any]) -> None:
    assert why_ineligible(a_call(**fields)) is not None


async def test_a_wrong_answer_that_was_corrected_is_hit_no_more() -> None:
    index, store, core = TableIndex(), MemoryStore(), Scripted()
    cache = a_cache(index, store)
    await asked(cache, core, FRANCE)
    hit = await asked(cache, core, WHATS)
    assert hit.notes.cache.entry is not None
    await quarantine(store, (semantic_key(hit.notes.cache.entry),))

    again = await asked(cache, core, WHATS)

    assert hit.notes.cache.status is CacheStatus.SEMANTIC
    assert again.notes.cache.status is CacheStatus.MISS


async def test_an_index_and_a_store_that_drifted_apart_serve_nothing() -> None:
    index, store, core = TableIndex(), MemoryStore(), Scripted()
    call = await asked(a_cache(index, store), core, FRANCE)
    assert call.notes.cache.partition is not None
    index.rows = [(call.notes.cache.partition, FRANCE, "an entry that no store has")]

    again = await asked(a_cache(index, store), core, WHATS)

    assert again.notes.cache.status is CacheStatus.MISS
    assert again.notes.extra["semantic_unusable"] == {"an entry that no store has": "gone"}


async def test_a_hit_that_worked_once_works_again() -> None:
    cache, core = a_cache(TableIndex(), MemoryStore()), Scripted()
    await asked(cache, core, FRANCE)

    statuses = [(await asked(cache, core, WHATS)).notes.cache.status for _ in range(3)]

    assert statuses == [CacheStatus.SEMANTIC] * 3


async def test_a_prompt_that_the_encoder_does_not_take_says_so() -> None:
    cache = a_cache(TableIndex(fault=IndexFault("too_long", "300 tokens")), MemoryStore())

    call = await asked(cache, Scripted(), FRANCE)

    assert (call.notes.extra["semantic"], call.notes.extra["semantic_insert"]) == ("too_long", "too_long")


async def test_a_streamed_answer_is_kept_and_told_again_as_a_stream() -> None:
    cache = a_cache(TableIndex(), MemoryStore())
    core = Scripted((Start("m", "b"), *(Delta(text=word) for word in ("The ", "capital ", "is Paris.")), Finish()))
    await asked(cache, core, FRANCE, stream=True)

    events = [event async for event in cache(a_question(WHATS, "c2", stream=True), core)]

    assert len(core.calls) == 1
    assert isinstance(events[0], Start)
    assert isinstance(events[-1], Finish)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "The capital is Paris."


def test_a_policy_that_learns_serves_before_it_has_learned_anything() -> None:
    policy = build_policy("calibrated", threshold=0.95, wrong_to_call_cost=25)

    assert policy.judge("a new entry", Features(similarity=0.995)).may_serve


@pytest.mark.parametrize("threshold", [1.01, -1.01, 95.0])
def test_a_bar_is_a_cosine_and_nothing_else(threshold: float) -> None:
    with pytest.raises(ValueError, match="cosine between -1 and 1"):
        SemanticCache(
            TableIndex(), MemoryStore(), route_of=lambda alias: "r", policy_of=lambda call: "p", threshold=threshold
        )
