"""The owner as a process, the semantic tier on it, a real model and a real Valkey."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache.encoder import Encoder
from cache.exact import ExactCache
from cache.owner_client import OwnerClient
from cache.redis_store import RedisStore
from cache.semantic import IndexFault, SemanticCache
from orchestration.core import CacheControl, CacheStatus, Call, Event, compose
from tests.cache.conftest import OwnerProcess, StartOwner
from tests.cache.scripted import PATIENT, Scripted, a_call, text_of

FRANCE = "What is the capital of France?"
WHATS = "What's the capital of France?"
CITY = "What city is France's capital?"
GERMANY = "What is the capital of Germany?"
BUSY_S = 60.0
"""A busy machine is no dead owner: the tests that want a deadline to pass say so."""


@asynccontextmanager
async def a_client(owner: OwnerProcess) -> AsyncGenerator[OwnerClient, None]:
    client = OwnerClient(owner.socket)
    try:
        yield client
    finally:
        await client.aclose()


class Tiers:
    """The semantic tier on a running owner, before a backend that counts."""

    def __init__(self, owner: OwnerProcess, valkey_url: str, *, deadline_ms: float = BUSY_S * 1000) -> None:
        self.core = Scripted()
        self.client = OwnerClient(owner.socket)
        self.store = RedisStore(valkey_url, timeout_s=BUSY_S)
        self.semantic = SemanticCache(
            self.client,
            self.store,
            route_of=lambda alias: "route",
            policy_of=lambda call: "policy",
            ttl_s=600.0,
            deadline_ms=deadline_ms,
        )

    async def __aenter__(self) -> Tiers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.semantic.aclose()
        await self.client.aclose()
        await self.store.aclose()

    async def ask(self, text: str, id: str = "c1", **more: Any) -> tuple[Call, list[Event]]:
        """Ask and wait until what the answer brought has been inserted."""
        call = a_call(id, messages=[{"role": "user", "content": text}], **{"temperature": 0, **more})
        events = [event async for event in compose([self.semantic], self.core)(call)]
        await self.semantic.aclose()
        return call, events


async def test_paraphrases_hit_and_another_country_does_not(start_owner: StartOwner, valkey_url: str) -> None:
    async with Tiers(start_owner(), valkey_url) as tiers:
        await tiers.ask(FRANCE, "first")

        whats, events = await tiers.ask(WHATS)
        city, _ = await tiers.ask(CITY)
        germany, _ = await tiers.ask(GERMANY)

        assert text_of(events) == "The capital is Paris."
        assert whats.notes.cache.status is CacheStatus.SEMANTIC
        assert whats.notes.cache.similarity == pytest.approx(0.990, abs=0.005)
        assert whats.notes.cache.entry_call == "first"
        assert whats.notes.cache.embedder is not None
        assert whats.notes.cache.embedder.startswith("all-minilm-l6-v2@")
        assert city.notes.cache.status is CacheStatus.SEMANTIC
        assert germany.notes.cache.status is CacheStatus.MISS
        assert germany.notes.cache.candidates[0].similarity < 0.7
        assert len(tiers.core.calls) == 2


async def test_another_tenant_system_prompt_or_temperature_never_hits(start_owner: StartOwner, valkey_url: str) -> None:
    async with Tiers(start_owner(), valkey_url) as tiers:
        await tiers.ask(FRANCE)
        system = [{"role": "system", "content": "Answer in German."}, {"role": "user", "content": FRANCE}]

        changes: tuple[dict[str, Any], ...] = (
            {"tenant": "t2"},
            {"temperature": 0.2},
            {"temperature": 1.0},
            {"messages": system},
        )
        for change in changes:
            same: dict[str, Any] = {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0}
            call = a_call(**{**same, **change})
            async for _ in compose([tiers.semantic], tiers.core)(call):
                pass
            assert call.notes.cache.status is not CacheStatus.SEMANTIC

        assert len(tiers.core.calls) == 5


async def test_the_exact_tier_stands_in_front_and_keeps_no_copy_of_a_semantic_hit(
    start_owner: StartOwner, valkey_url: str
) -> None:
    async with Tiers(start_owner(), valkey_url) as tiers:
        exact = ExactCache(
            tiers.store,
            ttl_s=600.0,
            route_of=lambda alias: "route",
            policy_of=lambda call: "policy",
            is_last_tier=False,
            bounds=PATIENT,
        )

        async def ask(text: str, **more: Any) -> CacheStatus:
            call = a_call(messages=[{"role": "user", "content": text}], temperature=0, **more)
            async for _ in compose([exact, tiers.semantic], tiers.core)(call):
                pass
            await tiers.semantic.aclose()
            return call.notes.cache.status

        only = CacheControl(is_only_if_cached=True)
        statuses = [await ask(FRANCE), await ask(FRANCE), await ask(WHATS), await ask(WHATS, cache=only)]
        await exact.aclose()

    assert statuses == [CacheStatus.MISS, CacheStatus.EXACT, CacheStatus.SEMANTIC, CacheStatus.SEMANTIC]


async def test_entries_survive_a_restart_of_the_owner(start_owner: StartOwner, valkey_url: str, tmp_path: Path) -> None:
    first = start_owner("--state", str(tmp_path))
    async with Tiers(first, valkey_url) as tiers:
        await tiers.ask(FRANCE)
        assert first.stop() == 0
        second = start_owner("--state", str(tmp_path))

        call, _ = await tiers.ask(WHATS)

        assert call.notes.degraded == []
        assert (first.ready["rows"], second.ready["rows"]) == (0, 1)
        assert (second.ready["dim"], second.ready["revision"]) == (384, call.notes.cache.embedder)
        assert call.notes.cache.status is CacheStatus.SEMANTIC


async def test_a_stopped_owner_is_a_miss_at_the_deadline_and_answers_again(
    start_owner: StartOwner, valkey_url: str
) -> None:
    owner = start_owner()
    async with Tiers(owner, valkey_url) as tiers, Tiers(owner, valkey_url, deadline_ms=20) as hasty:
        await tiers.ask(FRANCE)
        owner.process.send_signal(signal.SIGSTOP)
        hurried = a_call(messages=[{"role": "user", "content": WHATS}], temperature=0)

        async for _ in compose([hasty.semantic], hasty.core)(hurried):
            pass
        owner.process.send_signal(signal.SIGCONT)

        assert hurried.notes.degraded == ["semantic_cache_slow"]
        assert len(hasty.core.calls) == 1
        call, _ = await tiers.ask(CITY)
        assert call.notes.cache.status is CacheStatus.SEMANTIC


async def test_a_killed_owner_is_a_miss_until_another_is_there(start_owner: StartOwner, valkey_url: str) -> None:
    owner = start_owner()
    async with Tiers(owner, valkey_url) as tiers:
        await tiers.ask(FRANCE)
        owner.process.kill()
        owner.process.wait(timeout=30)

        missed, events = await tiers.ask(WHATS)
        start_owner()
        found, _ = await tiers.ask(CITY)

        assert missed.notes.degraded == ["semantic_cache_down"]
        assert text_of(events) == "The capital is Paris."
        assert found.notes.cache.status is CacheStatus.SEMANTIC


async def test_owners_on_one_valkey_know_each_others_entries(start_owner: StartOwner, valkey_url: str) -> None:
    one, other = start_owner(name="one.sock"), start_owner(name="other.sock")
    async with a_client(one) as mine, a_client(other) as theirs:
        await theirs.search("p", WHATS, top_k=5, timeout_s=BUSY_S)
        await mine.add("p", FRANCE, "entry", ttl_s=100)

        await until_found(theirs, True)
        await theirs.remove_rows([("p", "entry")])
        await until_found(mine, False)


async def until_found(client: OwnerClient, wanted: bool) -> None:
    async with asyncio.timeout(BUSY_S):
        while bool((await client.search("p", WHATS, top_k=5, timeout_s=BUSY_S)).candidates) is not wanted:
            pass  # each search waits for an answer of its own


async def test_searches_of_many_callers_share_batches(start_owner: StartOwner) -> None:
    async with a_client(start_owner("--max-queue-delay-ms", "100")) as client:
        texts = [f"how far is planet number {number} from the sun" for number in range(24)]

        await asyncio.gather(*[client.search("p", text, top_k=1, timeout_s=BUSY_S) for text in texts])

        stats = await client.stats()
        assert stats["encoded"] == 24
        assert stats["largest_batch"] > 4
        assert stats["batches"] <= 6


async def test_a_miss_is_encoded_once_for_its_search_and_its_insert(start_owner: StartOwner, valkey_url: str) -> None:
    async with Tiers(start_owner(), valkey_url) as tiers:
        await tiers.ask(FRANCE)

        stats = await tiers.client.stats()
        assert (stats["encoded"], stats["rows"], stats["unsaved"]) == (1, 1, 0)


async def test_encode_gives_the_encoders_vectors_in_order_and_counts_tokens(
    one_owner: OwnerProcess, encoder: Encoder
) -> None:
    texts = [FRANCE, "a", "word " * 100, "Wie heißt die Hauptstadt?", "\U0001f984"] * 20
    async with a_client(one_owner) as client:
        embedded = await client.embed(texts, timeout_s=BUSY_S)

    expected = encoder.encode(encoder.tokenize(texts[:5]))
    assert embedded.vectors.shape == (100, 384)
    assert np.einsum("nd,nd->n", embedded.vectors, np.tile(expected, (20, 1))).min() > 0.9999
    assert embedded.num_tokens[:5] == (9, 3, 102, 13, 3)


async def test_texts_that_the_model_cannot_tell_apart_have_no_semantic_tier(one_owner: OwnerProcess) -> None:
    async with a_client(one_owner) as client:
        for text, code in (("word " * 300, "too_long"), ("What does \U0001f984 mean?", "unreadable")):
            with pytest.raises(IndexFault) as caught:
                await client.search("p", text, top_k=5, timeout_s=BUSY_S)
            assert caught.value.code == code


async def test_a_long_text_is_refused_by_its_place(one_owner: OwnerProcess) -> None:
    async with a_client(one_owner) as client:
        with pytest.raises(IndexFault, match="text 1 has 302 tokens, all-minilm-l6-v2 takes at most 256") as caught:
            await client.encode(["short", "word " * 300], timeout_s=BUSY_S)

    assert caught.value.code == "too_long"


@pytest.mark.parametrize("ttl_s", [0, -1, float("inf"), float("nan")])
async def test_a_life_time_that_cannot_be_is_refused(one_owner: OwnerProcess, ttl_s: float) -> None:
    async with a_client(one_owner) as client:
        with pytest.raises(IndexFault) as caught:
            await client.add("p", "a text", "entry", ttl_s=ttl_s)

    assert caught.value.code == "bad_params"


async def test_an_owner_without_redis_serves_from_memory(start_owner: StartOwner, short_folder: Path) -> None:
    async with a_client(start_owner(redis=f"unix://{short_folder}/nobody.sock")) as client:
        await client.add("p", FRANCE, "entry", ttl_s=100)

        found = await client.search("p", WHATS, top_k=5, timeout_s=BUSY_S)

        assert [candidate.entry for candidate in found.candidates] == ["entry"]
        assert (await client.stats())["unsaved"] == 1
        assert await client.check_health() is None


async def test_an_owner_on_postgres_hits_and_its_entries_survive_a_restart(
    start_owner: StartOwner, valkey_url: str, postgres_server: str
) -> None:
    first = start_owner("--postgres", postgres_server)
    async with Tiers(first, valkey_url) as tiers:
        await tiers.ask(FRANCE)
        assert first.stop() == 0
        second = start_owner("--postgres", postgres_server)

        call, _ = await tiers.ask(WHATS)

        assert second.ready["rows"] == 1
        assert call.notes.cache.status is CacheStatus.SEMANTIC
        assert call.notes.cache.similarity == pytest.approx(0.990, abs=0.005)


async def test_without_its_postgres_a_look_up_misses_and_says_so(
    start_owner: StartOwner, valkey_url: str, short_folder: Path
) -> None:
    nobody = f"postgresql://postgres@/postgres?host={short_folder}/nobody"
    async with Tiers(start_owner("--postgres", nobody), valkey_url) as tiers:
        call, events = await tiers.ask(FRANCE)

        assert text_of(events) == "The capital is Paris."
        assert call.notes.cache.status is CacheStatus.MISS
        assert call.notes.degraded == ["semantic_cache_down"]


def test_an_owner_ends_with_its_supervisor(start_owner: StartOwner) -> None:
    owner = start_owner()
    assert owner.process.stdin is not None

    owner.process.stdin.close()

    assert owner.process.wait(timeout=15) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "/nowhere", "--redis", "unix:///x"], "no sentence-transformers folder at /nowhere"),
        (["--redis", "http://x"], "begins with redis://"),
        (["--redis", "unix:///x", "--max-batch-size", "0"], "at least 1"),
        (["--redis", "unix:///x", "--approximate-above", "0"], "approximate_above is at least 1"),
        (["--redis", "unix:///x", "--postgres", "sqlite:///x"], "begins with postgresql://"),
    ],
)
def test_a_wrong_command_line_ends_with_one_line_that_says_so(
    embedding_model: Path, flags: list[str], words: str
) -> None:
    command = [sys.executable, "-m", "cache.owner", "--socket", "/tmp/never.sock", "--model", str(embedding_model)]

    done = subprocess.run([*command, *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
