"""What every index promises, on the real services: FAISS over Valkey, and pgvector."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cache.index import Row
from cache.owner_methods import VectorIndex
from cache.partitions import Partitions
from cache.pgvector_index import SESSION, PgvectorIndex
from cache.postgres import Postgres
from cache.shared_index import SharedIndex
from cache.store import StoreDown
from cache.vector_store import VectorStore

DIM = 16
PATIENT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def vector(seed: int) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).normal(size=DIM)
    return np.asarray(values / np.linalg.norm(values), np.float32)


def row(number: int, *, ttl_s: float = 1000.0) -> Row:
    return Row(f"e{number}", vector(number), time.time() + ttl_s)


def a_pgvector_index(url: str, revision: str, *, session: str = SESSION, **more: Any) -> PgvectorIndex:
    return PgvectorIndex(Postgres(url, session=session, timeout_s=PATIENT_S), revision=revision, dim=DIM, **more)


@asynccontextmanager
async def started(index: PgvectorIndex | SharedIndex) -> AsyncGenerator[Any, None]:
    await index.start()
    try:
        yield index
    finally:
        await index.aclose()


class Kept:
    """Where rows are kept: indexes that are opened on it see the same ones."""

    def __init__(self, kind: str, url: str) -> None:
        self.clock = Clock()
        self._kind = kind
        self._url = url
        self._revision = f"m@{uuid.uuid4()}"

    def open(self, *, name: str = "a") -> PgvectorIndex | SharedIndex:
        if self._kind == "pgvector":
            return a_pgvector_index(self._url, self._revision, clock=self.clock)
        vectors = VectorStore(self._url, revision=self._revision, dim=DIM, owner=name)
        return SharedIndex(Partitions(DIM, clock=self.clock), vectors, clock=self.clock)


@pytest.fixture(params=["faiss", "pgvector"])
def kept(request: pytest.FixtureRequest) -> Kept:
    service = "valkey_url" if request.param == "faiss" else "postgres_server"
    return Kept(request.param, request.getfixturevalue(service))


async def found(index: VectorIndex, partition: str, number: int, top_k: int = 10) -> list[str]:
    await index.ready(partition)
    return [candidate.entry for candidate in await index.search(partition, vector(number), top_k)]


async def test_the_nearest_come_first_with_their_cosines(kept: Kept) -> None:
    rows = [row(number) for number in range(30)]
    async with started(kept.open()) as index:
        for one in rows:
            assert await index.add("p", one)
        await index.ready("p")

        for seed in range(40, 45):
            candidates = await index.search("p", vector(seed), 5)

            expected = sorted(((float(one.vector @ vector(seed)), one.entry) for one in rows), reverse=True)[:5]
            assert [candidate.entry for candidate in candidates] == [entry for _, entry in expected]
            cosines = [candidate.similarity for candidate in candidates]
            assert cosines == pytest.approx([cosine for cosine, _ in expected], abs=1e-5)


async def test_partitions_and_revisions_never_meet(kept: Kept) -> None:
    async with started(kept.open()) as index, started(Kept(kept._kind, kept._url).open()) as other:
        await index.add("p", row(1))
        await index.add("q", row(2))

        assert await found(index, "p", 2) == ["e1"]
        assert await found(index, "nobody's", 2) == []
        assert await found(other, "p", 1) == []


async def test_an_entry_that_is_added_again_is_there_once_and_as_the_newest(kept: Kept) -> None:
    async with started(kept.open()) as index:
        await index.add("p", row(1))
        await index.add("p", Row("twin", vector(1), time.time() + 1000))
        assert await found(index, "p", 1) == ["twin", "e1"]

        await index.add("p", row(1))

        assert await found(index, "p", 1) == ["e1", "twin"]


async def test_what_is_removed_is_found_nowhere_and_counted(kept: Kept) -> None:
    async with started(kept.open()) as index:
        for partition in ("p", "q"):
            await index.add(partition, row(1))
            await index.add(partition, row(2))

        assert await index.remove_rows([("p", "e1"), ("q", "e1")]) == 2
        assert await index.remove_rows([("p", "e2"), ("p", "nobody")]) == 1

        assert await found(index, "p", 1) == []
        assert await found(index, "q", 1) == ["e2"]
        assert await index.remove_rows([("p", "e1"), ("q", "e1")]) == 0


async def test_what_is_over_is_not_found(kept: Kept) -> None:
    async with started(kept.open()) as index:
        await index.add("p", row(1, ttl_s=60))
        await index.add("p", row(2, ttl_s=600))

        kept.clock.ahead_s = 100

        assert await found(index, "p", 1) == ["e2"]


async def test_rows_survive_their_owner_and_are_seen_by_others(kept: Kept) -> None:
    async with started(kept.open(name="a")) as index:
        await index.add("p", row(1))
    async with started(kept.open(name="b")) as one, started(kept.open(name="c")) as other:
        assert await found(one, "p", 1) == ["e1"]
        await found(other, "p", 1)

        await one.add("p", row(2))

        async with asyncio.timeout(PATIENT_S):
            while await found(other, "p", 2) != ["e2", "e1"]:  # noqa: ASYNC110 (the news comes through a server)
                await asyncio.sleep(0.01)


async def test_changes_are_counted(kept: Kept) -> None:
    async with started(kept.open()) as index:
        before = index.generation
        await index.add("p", row(1))
        await index.remove_rows([("p", "e1")])

        assert index.generation == before + 2
        assert index.numbers()["generation"] == index.generation


async def test_a_large_partition_in_postgres_is_searched_by_an_index_of_its_own(postgres_server: str) -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(40, DIM))
    vectors = centres[generator.integers(0, 40, 1200)] + 0.3 * generator.normal(size=(1200, DIM))
    vectors = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
    clock = Clock()
    session = f"{SESSION}; SET enable_sort = off"  # so few rows are sorted more cheaply than they are found
    index = a_pgvector_index(postgres_server, "m@large", session=session, approximate_above=500, clock=clock)
    async with started(index):
        rows = [Row(f"e{n}", one, time.time() + 60 + n) for n, one in enumerate(vectors)]
        for at in range(0, len(rows), 100):  # each has the database's whole patience, the wait for its turn included
            await asyncio.gather(*[index.add("large", one) for one in rows[at : at + 100]])
        await index.add("small", row(1))
        await index.keep_house()
        assert (index.numbers()["approximate"], index.numbers()["rows"]) == (1, 1201)
        plan = await index._database.run(
            f"EXPLAIN SELECT entry, embedding <=> '[{','.join(['0.25'] * DIM)}]' AS distance FROM {index._table}"
            " WHERE partition = 'large' AND expires_at > 5 ORDER BY distance LIMIT 5"
        )

        num_found = 0
        for place in range(0, 1200, 24):
            alive = vectors @ vectors[place]
            expected = {f"e{number}" for number in np.argsort(-alive)[:5]}
            num_found += len(expected & set(one.entry for one in await index.search("large", vectors[place], 5)))
        for number in range(0, 1200, 2):
            await index.remove_rows([("large", f"e{number}")])
        names = {one.entry for place in range(0, 1200, 100) for one in await index.search("large", vectors[place], 50)}

        assert any("_near_" in line for (line,) in plan), "\n".join(line for (line,) in plan)
        assert num_found / 250 >= 0.95
        assert names
        assert all(int(name[1:]) % 2 == 1 for name in names)
        clock.ahead_s = 700  # most are over
        await index.keep_house()
        await index.keep_house()
        assert index.numbers()["approximate"] == 1  # 280 are left, over half the bar
        clock.ahead_s = 1000
        await index.keep_house()
        await index.keep_house()
        assert index.numbers()["approximate"] == 0


async def test_without_postgres_every_method_says_so_at_once(short_folder: Path) -> None:
    index = a_pgvector_index(f"postgresql://postgres@/postgres?host={short_folder}/nobody", "m@1", retry_s=3600)
    async with started(index):
        asked: list[Callable[[], Any]] = [
            lambda: index.search("p", vector(1), 5),
            lambda: index.add("p", row(1)),
            lambda: index.remove_rows([("p", "e1")]),
        ]
        for ask in asked:
            with pytest.raises(StoreDown):
                await ask()

        assert index.numbers()["store_down"] == 1
