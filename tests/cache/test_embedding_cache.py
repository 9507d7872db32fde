from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from cache.batcher import Batcher, BatchLimits
from cache.embedding_cache import Embedding, EmbeddingCache
from cache.embedding_slots import EmbeddingSlots
from cache.encoder import Encoder, Tokens
from cache.index import Row
from cache.owner_client import OwnerClient
from cache.owner_methods import OwnerMethods
from cache.semantic import IndexFault
from orchestration.core import Candidate
from tests.cache.conftest import OwnerProcess, StartOwner
from tests.cache.own_valkey import OwnValkey

DIM = 8
BUSY_S = 60.0


def an_embedding(seed: int) -> Embedding:
    vector = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return Embedding(vector, seed, seed % 2 == 0)


class Encoding:
    """Give each text an embedding, count how often, and hold it back until told."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Embedding:
        self.count += 1
        await self.gate.wait()
        return an_embedding(self.count)


def is_same(one: Embedding | None, other: Embedding) -> bool:
    assert one is not None
    return (one.num_tokens, one.has_unknown) == (other.num_tokens, other.has_unknown) and np.array_equal(
        one.vector, other.vector
    )


async def test_a_text_that_was_encoded_is_found_and_another_is_not() -> None:
    cache, encoding = EmbeddingCache(max_bytes=10_000), Encoding()

    made = await cache.encode_once("a", encoding, lane=0)

    [found, other] = await cache.find(["a", "b"])
    assert is_same(found, made)
    assert other is None


async def test_many_who_ask_for_a_text_at_once_have_it_encoded_once() -> None:
    cache, encoding = EmbeddingCache(max_bytes=10_000), Encoding()
    encoding.gate.clear()
    asking = [asyncio.create_task(cache.encode_once("a", encoding, lane=0)) for _ in range(10)]
    await asyncio.sleep(0)

    asking[0].cancel()  # who leaves does not stop it for the others
    encoding.gate.set()
    made = await asyncio.gather(*asking[1:])

    assert encoding.count == 1
    assert all(is_same(one, made[0]) for one in made)
    assert (cache.counts.joined, cache.counts.encoded) == (9, 1)


async def test_what_fails_is_told_to_everybody_and_tried_again_by_the_next() -> None:
    cache, encoding = EmbeddingCache(max_bytes=10_000), Encoding()

    async def fail() -> Embedding:
        raise RuntimeError("no room")

    outcomes = await asyncio.gather(*(cache.encode_once("a", fail, lane=0) for _ in range(3)), return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["no room"] * 3
    assert is_same(await cache.encode_once("a", encoding, lane=0), an_embedding(1))


async def test_an_urgent_text_does_not_wait_for_a_patient_one() -> None:
    cache, patient, urgent = EmbeddingCache(max_bytes=10_000), Encoding(), Encoding()
    patient.gate.clear()
    waiting = asyncio.create_task(cache.encode_once("a", patient, lane=1))
    await asyncio.sleep(0)

    await cache.encode_once("a", urgent, lane=0)

    assert not waiting.done()
    patient.gate.set()
    await waiting


@given(order=st.lists(st.integers(0, 30), max_size=200))
@settings(max_examples=50, deadline=None)
def test_memory_never_exceeds_its_bound_and_keeps_the_latest(order: list[int]) -> None:
    async def run() -> None:
        cache = EmbeddingCache(max_bytes=2_000)
        for number in order:
            [known] = await cache.find([str(number)])
            if known is None:
                await cache.encode_once(str(number), lambda number=number: _made(number), lane=0)  # type: ignore[misc]
            assert cache.size_bytes <= 2_000
            [found] = await cache.find([str(number)])
            assert is_same(found, an_embedding(number))
        assert cache.size_bytes == len(cache) * (4 * DIM + 300)

    asyncio.run(run())


async def _made(number: int) -> Embedding:
    return an_embedding(number)


@pytest.fixture
async def slots(valkey_url: str) -> AsyncIterator[EmbeddingSlots]:
    slots = EmbeddingSlots(valkey_url, revision="m@1", dim=DIM, max_bytes=100_000, timeout_s=60.0)
    yield slots
    await slots.aclose()


async def test_what_one_owner_encoded_another_finds_bit_for_bit(valkey_url: str) -> None:
    one = EmbeddingSlots(valkey_url, revision="m@1", dim=DIM, max_bytes=100_000, timeout_s=60.0)
    first = EmbeddingCache(max_bytes=10_000, shared=one)
    made = await first.encode_once("a", Encoding(), lane=0)
    await one.aclose()

    for revision, is_known in (("m@1", True), ("m@2", False)):
        other = EmbeddingSlots(valkey_url, revision=revision, dim=DIM, max_bytes=100_000, timeout_s=60.0)
        second = EmbeddingCache(max_bytes=10_000, shared=other)
        [found, unknown, again] = await second.find(["a", "b", "a"])
        assert (found is not None, unknown, again is not None) == (is_known, None, is_known)
        if is_known:
            assert is_same(found, made)
            assert second.counts.shared == 1
        await other.aclose()


async def test_slots_take_no_more_room_than_they_may(valkey_url: str) -> None:
    slots = EmbeddingSlots(valkey_url, revision="m@1", dim=DIM, max_bytes=1_000, timeout_s=60.0)
    digests = [bytes([number]) * 16 for number in range(200)]
    for number, digest in enumerate(digests):
        slots.write(digest, an_embedding(number))
    await slots.aclose()

    async with Redis.from_url(valkey_url) as raw:
        keys = await raw.keys("lamina:e:*")
        assert 0 < len(keys) <= 1_000 // (21 + 4 * DIM)
        assert all([0 < await raw.ttl(key) <= 7 * 86_400 for key in keys])
    reader = EmbeddingSlots(valkey_url, revision="m@1", dim=DIM, max_bytes=1_000, timeout_s=60.0)
    found = await reader.read(digests)
    await reader.aclose()
    known = [number for number, one in enumerate(found) if one is not None]
    assert len(known) == len(keys)
    assert all(is_same(found[number], an_embedding(number)) for number in known)


async def test_bytes_that_are_none_of_ours_are_a_miss(slots: EmbeddingSlots, valkey_url: str) -> None:
    digest = b"x" * 16
    async with Redis.from_url(valkey_url) as raw:
        await raw.set(slots._key(digest), b"foreign")

    assert await slots.read([digest]) == [None]


async def test_without_redis_everything_is_a_miss_and_soon_nobody_asks(short_folder: Path) -> None:
    slots = EmbeddingSlots(f"unix://{short_folder}/nobody.sock", revision="m", dim=DIM, max_bytes=1000)
    slots.start()
    slots.write(b"x" * 16, an_embedding(1))

    assert [await slots.read([b"x" * 16]) for _ in range(5)] == [[None]] * 5
    await slots.aclose()


async def test_a_redis_that_hangs_holds_nobody_up(short_folder: Path) -> None:
    with OwnValkey(short_folder) as server:
        slots = EmbeddingSlots(server.url, revision="m", dim=DIM, max_bytes=1000, timeout_s=0.01)
        async with asyncio.timeout(60):
            while not server.path.exists():  # noqa: ASYNC110 (another process makes it)
                await asyncio.sleep(0.01)
        server.freeze()

        async with asyncio.timeout(30):
            assert [await slots.read([b"x" * 16]) for _ in range(10)] == [[None]] * 10
        server.thaw()
        await slots.aclose()


class NoIndex:
    """Find nothing."""

    generation = 0

    def is_ready(self, partition: str) -> bool:
        return True

    async def ready(self, partition: str) -> None:
        return

    async def search(self, partition: str, vector: object, top_k: int) -> tuple[Candidate, ...]:
        return ()

    async def add(self, partition: str, row: Row) -> bool:
        return True

    async def remove_rows(self, rows: object) -> int:
        return 0

    def numbers(self) -> dict[str, int]:
        return {}


class Others:
    """Know some texts' digests from some time on, and count how often they were asked."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.is_knowing = False

    async def read(self, digests: Sequence[bytes]) -> list[Embedding | None]:
        self.num_asked += 1
        return [an_embedding(1) if self.is_knowing else None for _ in digests]

    def write(self, digest: bytes, embedding: Embedding) -> None:
        raise AssertionError("nothing is encoded here")


async def test_others_who_know_nothing_are_asked_for_few_lone_texts_until_they_know_one() -> None:
    others = Others()
    cache = EmbeddingCache(max_bytes=1_000_000, shared=others)

    for number in range(64 + 160):
        await cache.find([f"unknown {number}"])
    asked_in_vain = others.num_asked
    others.is_knowing = True
    found = [await cache.find([f"known {number}"]) for number in range(40)]

    assert asked_in_vain == 64 + 10
    assert [None] not in found[16:]
    assert others.num_asked - asked_in_vain >= 40 - 16


async def test_several_texts_are_always_asked_for_together() -> None:
    others = Others()
    cache = EmbeddingCache(max_bytes=1_000_000, shared=others)

    for number in range(100):
        await cache.find([f"one {number}", f"other {number}"])

    assert others.num_asked == 100


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_vectors_from_the_cache_are_those_that_encoding_gives(encoder: Encoder, texts: list[str]) -> None:
    async def run() -> None:
        async def encode(batch: object) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
            return list(encoder.encode(batch))  # type: ignore[arg-type]  # tokens, as they were submitted

        batcher: Batcher[Tokens, np.ndarray[tuple[int], np.dtype[np.float32]]] = Batcher(
            encode, limits=BatchLimits(max_queue_delay_s=0.0)
        )
        batcher.start()
        methods = OwnerMethods(encoder, batcher, NoIndex()).by_name()
        try:
            first = await methods["encode"]({"texts": texts}, b"")
            again = await methods["encode"]({"texts": texts + texts}, b"")
        finally:
            await batcher.aclose()
        once = np.frombuffer(first[1], "<f4").reshape(len(texts), -1)
        assert again[1] == first[1] * 2
        assert again[0]["num_tokens"] == first[0]["num_tokens"] * 2
        alone = np.stack([encoder.encode(encoder.tokenize([text]))[0] for text in texts])
        assert np.abs(once - alone).max() < 1e-5
        assert batcher.counts.num_items == len(set(texts))

    asyncio.run(run())


async def test_a_text_is_not_encoded_again_after_a_restart_nor_by_another_owner(
    start_owner: StartOwner, valkey_url: str
) -> None:
    texts = [f"What is the capital of country number {number}?" for number in range(20)]
    first = start_owner(name="one.sock")
    vectors = await _encoded(first, texts)
    async with Redis.from_url(valkey_url) as raw, asyncio.timeout(BUSY_S):
        while len(await raw.keys("lamina:e:*")) < len(texts):  # noqa: ASYNC110 (written a moment later)
            await asyncio.sleep(0.05)
    first.stop()

    other = start_owner(name="other.sock")
    assert np.array_equal(await _encoded(other, texts), vectors)
    client = OwnerClient(other.socket)
    stats = await client.stats()
    assert (stats["encoded"], stats["embeddings_found_shared"]) == (0, len(texts))
    await client.aclose()


async def test_a_text_with_an_unknown_token_has_a_vector_and_no_semantic_tier(one_owner: OwnerProcess) -> None:
    client = OwnerClient(one_owner.socket)
    text = "What does \U0001f984 mean to you?"
    await client.encode([text], timeout_s=BUSY_S)

    with pytest.raises(IndexFault) as caught:
        await client.search("p", text, top_k=5, timeout_s=BUSY_S)

    assert caught.value.code == "unreadable"
    await client.aclose()


async def _encoded(owner: OwnerProcess, texts: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    client = OwnerClient(owner.socket)
    try:
        return await client.encode(texts, timeout_s=BUSY_S)
    finally:
        await client.aclose()
