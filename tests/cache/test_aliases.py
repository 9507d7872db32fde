from __future__ import annotations

from dataclasses import replace

import pytest

from cache.aliases import Alias, Aliases
from cache.entry import Entry
from cache.memory_store import MemoryStore
from cache.partition import Question
from cache.quarantine import alias_key
from tests.cache.scripted import PARIS, Clock

QUESTION = Question("p", "which city is the capital of France?")
ENTRY = Entry("e", "c1", "m", "b", created_at=1_000_000.0, ttl_s=100.0, events=PARIS, question="capital of France?")


async def test_an_alias_lives_as_long_as_its_entry() -> None:
    clock = Clock(1_000_060.0)
    aliases = Aliases(MemoryStore(clock=clock), clock=clock)
    is_kept = await aliases.keep(QUESTION, ENTRY, similarity=0.9)

    clock.now += 39.0
    before = await aliases.find(QUESTION)
    clock.now += 2.0
    after = await aliases.find(QUESTION)

    assert is_kept
    assert (before, after) == (Alias("e", "c1", 0.9), None)


async def test_an_entry_whose_time_is_over_has_no_alias() -> None:
    aliases = Aliases(MemoryStore(), clock=Clock(1_000_100.0))

    assert not await aliases.keep(QUESTION, ENTRY, similarity=0.9)
    assert await aliases.find(QUESTION) is None


@pytest.mark.parametrize("other", [replace(QUESTION, partition="q"), replace(QUESTION, text=QUESTION.text.upper())])
async def test_another_partition_and_other_words_have_no_part_in_it(other: Question) -> None:
    clock = Clock(1_000_000.0)
    aliases = Aliases(MemoryStore(clock=clock), clock=clock)
    await aliases.keep(QUESTION, ENTRY, similarity=0.9)

    assert await aliases.find(other) is None


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x93", b"\x93\x01\x02\x03", b"\xa3abc"])
async def test_what_cannot_be_read_is_no_alias(damaged: bytes) -> None:
    store = MemoryStore()
    await store.put(alias_key(QUESTION), damaged, ttl_s=10)

    assert await Aliases(store).find(QUESTION) is None


@pytest.mark.parametrize(("changed", "is_it"), [({}, True), ({"call_id": "c2"}, False), ({"id": "f"}, False)])
def test_an_entry_that_was_made_anew_is_another_one(changed: dict[str, str], *, is_it: bool) -> None:
    entry = Entry(**{**{name: getattr(ENTRY, name) for name in ENTRY.__slots__}, **changed})

    assert Alias("e", "c1", 0.9).is_of(entry) is is_it
