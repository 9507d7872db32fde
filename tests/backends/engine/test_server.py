from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.engine.core import EngineCore
from backends.engine.loop import EngineLoop
from backends.engine.numbers import BOUNDS
from backends.engine.sched.decision import Decision
from backends.engine.server import EngineServer
from backends.engine.types import Sampled
from tests.backends.engine.fakes import config, next_token
from tests.backends.engine.link_client import LinkClient

INFO = {"name": "fake", "revision": "r", "vocab_size": 50}
numbers = itertools.count()


class GatedRunner:
    """Draw a token that follows from the last one, one step per permit; prompt token 13 is bad luck."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)

    def open(self) -> None:
        """Let all steps run."""
        self.gate.release(1_000_000)

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Wait for a permit, then draw."""
        assert self.gate.acquire(timeout=60)
        if any(13 in row.tokens for row in decision.rows):
            raise RuntimeError("bad luck")
        return [Sampled(row.key, _after(row.tokens[-1])) for row in decision.rows if row.draw is not None]


def _after(token: int) -> int:
    drawn = next_token([token])
    return 14 if drawn == 13 else drawn


def _answer(last: int, count: int) -> list[int]:
    tokens = [last]
    for _ in range(count):
        tokens.append(_after(tokens[-1]))
    return tokens[1:]


class Served:
    """A served engine, and ways to connect to it."""

    def __init__(self, address: str, runner: GatedRunner, core: EngineCore) -> None:
        self.address = address
        self.runner = runner
        self.core = core

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[LinkClient]:
        client = await LinkClient.connect(self.address)
        try:
            yield client
        finally:
            await client.aclose()


@asynccontextmanager
async def _serve(address: str, *, max_buffer_bytes: int = 1 << 20, **changes: object) -> AsyncIterator[Served]:
    runner = GatedRunner()
    core = EngineCore(config(**changes), runner, new_seed=lambda: 5)
    server = EngineServer(INFO, max_buffer_bytes=max_buffer_bytes)
    engine = EngineLoop(core, deliver=server.deliver, crashed=lambda: None)
    engine.start()
    try:
        yield Served(await server.start(address, engine), runner, core)
    finally:
        runner.open()
        await server.aclose()
        await asyncio.to_thread(engine.close)


@pytest.fixture
def address(short_folder: Path) -> str:
    return f"unix://{short_folder}/engine-{next(numbers)}.sock"


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_submission_is_answered_step_by_step(address: str, kind: str) -> None:
    async with _serve(address if kind == "unix" else "tcp://127.0.0.1:0") as served, served.connection() as client:
        served.runner.open()
        await client.send(op="hello")
        assert await client.receive() == {"op": "info", **INFO}

        await client.submit(7, [1, 2, 3])
        steps = [await client.receive() for _ in range(4)]

    wanted = _answer(3, 4)
    finishes = [None, None, None, "length"]
    told = [step.pop("events", None) for step in steps]
    assert steps == [
        {"op": "step", "rows": [[7, [token], None, finish, 0]]} for token, finish in zip(wanted, finishes, strict=True)
    ]
    [[first_id, first]], *between, [[last_id, last]] = told
    assert between == [None] * len(between)
    assert first_id == last_id == 7
    assert first == {"queued": 0.0, "first_token": first["first_token"]}
    assert last == {**first, "finished": last["finished"]}


async def test_one_frame_per_step_holds_only_the_connections_own_rows(address: str) -> None:
    async with _serve(address) as served, served.connection() as one, served.connection() as other:
        await one.submit(1, [1])
        await one.submit(2, [2])
        await other.submit(1, [3])
        await one.stats_until(lambda stats: stats["running"] + stats["waiting"] >= 1)
        served.runner.open()

        answers = await asyncio.gather(_all_rows(one, 2), _all_rows(other, 1))

    assert answers == [{1: _answer(1, 4), 2: _answer(2, 4)}, {1: _answer(3, 4)}]


async def _all_rows(client: LinkClient, count: int) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    ended = 0
    while ended < count:
        message = await client.receive()
        for request_id, drawn, _, finish, _ in message.get("rows", ()):
            tokens.setdefault(request_id, []).extend(drawn)
            ended += finish is not None
    return tokens


async def test_no_row_comes_after_an_abort_and_its_pages_are_free(address: str) -> None:
    async with _serve(address) as served, served.connection() as client:
        await client.submit(1, [1, 2], max_tokens=40)
        served.runner.gate.release()
        assert (await client.receive())["op"] == "step"
        await client.send(op="abort", id=1)
        await client.send(op="abort", id=1)
        await client.send(op="hello")
        assert (await client.receive())["op"] == "info"
        served.runner.open()

        stats = await client.stats_until(lambda stats: stats["aborted"] == 1)
        await client.submit(2, [3])
        rows = [row for _ in range(4) for row in (await client.receive())["rows"]]

    assert stats["pages_used"] == 0
    assert [row[0] for row in rows] == [2, 2, 2, 2]


async def test_a_lost_connection_aborts_its_requests(address: str) -> None:
    async with _serve(address, max_len=40_000, num_pages=60_000) as served, served.connection() as watcher:
        async with served.connection() as client:
            for request_id in range(6):  # more than run at once, and none ends before the loss is seen
                await client.submit(request_id, [request_id + 1], max_tokens=30_000)
            served.runner.gate.release()
            assert (await client.receive())["op"] == "step"
            held = await watcher.stats_until(lambda stats: stats["pages_used"] > 0)
        served.runner.open()
        stats = await watcher.stats_until(lambda stats: stats["aborted"] == 6)

    assert held["running"] > 0
    assert stats["running"] + stats["waiting"] == 0
    assert stats["pages_used"] == 0


async def test_a_reader_that_stalls_is_cut_and_others_go_on(address: str) -> None:
    async with (
        _serve(address, max_buffer_bytes=20_000, max_len=40_000, num_pages=10_000) as served,
        served.connection() as watcher,
        served.connection() as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for request_id in range(4):
            await client.submit(request_id, [1], max_tokens=30_000)
        await watcher.stats_until(lambda stats: stats["running"] + stats["waiting"] == 4)
        served.runner.open()

        stats = await watcher.stats_until(lambda stats: stats["aborted"] == 4)
        await watcher.submit(9, [2])

        assert await watcher.answer(9) == (_answer(2, 4), "length")
    assert stats["pages_used"] == 0


async def test_an_engine_faster_than_the_event_loop_costs_it_one_turn_and_loses_no_step(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    turns: list[object] = []
    call_soon = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        turns.append(callback)
        return call_soon(callback, *args)

    async with _serve(address, max_len=1_000, num_pages=1_000) as served, served.connection() as client:
        await client.submit(1, [1], max_tokens=500)
        await client.stats_until(lambda stats: stats["running"] + stats["waiting"] == 1)
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        served.runner.open()
        while served.core.stats()["finished"] == 0:  # the loop is held here on purpose
            threading.Event().wait(0.001)
        held_turns = len(turns)
        answered = await client.answer(1)

    assert held_turns == 1
    assert answered == (_answer(1, 500), "length")


@pytest.mark.parametrize(
    ("prompt", "changes", "code", "words"),
    [
        ([1] * 60, {"max_tokens": 5}, "never_fits", "the context holds 64"),
        ([], {}, "bad_params", "prompt is empty"),
        ([99], {}, "bad_params", "token 99"),
        ([1], {"max_tokens": 0}, "bad_params", "max_tokens is 0"),
        ([1], {"max_tokens": None}, "bad_params", "max_tokens is missing"),
        ([1], {"max_tokens": "x"}, "bad_params", "max_tokens is a str"),
        ([1], {"max_tokens": True}, "bad_params", "max_tokens is a bool"),
        ([1], {"temperature": -1.0}, "bad_params", "temperature is -1.0"),
        ([1], {"temperature": []}, "bad_params", "temperature is a list"),
        ([1], {"stop_ids": ["a"]}, "bad_params", "stop_ids must be"),
        ([1], {"salt": 5}, "bad_params", "salt is a int"),
        ([1.5], {}, "bad_params", "prompt must be"),
    ],
)
async def test_what_cannot_run_is_refused_with_the_reason_and_the_next_one_runs(
    address: str, prompt: list[int], changes: dict[str, object], code: str, words: str
) -> None:
    async with _serve(address) as served, served.connection() as client:
        served.runner.open()
        await client.submit(1, prompt, **changes)
        refused = await client.receive()
        await client.submit(1, [2])
        answered = await client.answer(1)

    assert (refused["op"], refused["id"], refused["code"]) == ("refused", 1, code)
    assert words in refused["message"]
    assert answered == (_answer(2, 4), "length")


async def test_a_full_queue_refuses_with_a_hint_when_to_come_back(address: str) -> None:
    async with _serve(address, max_waiting=1, max_num_seqs=1) as served, served.connection() as client:
        await client.submit(1, [1])
        await client.stats_until(lambda stats: stats["waiting"] == 1 or stats["running"] == 1)
        served.runner.gate.release()
        await client.receive()
        await client.submit(2, [2])
        await client.submit(3, [3])
        served.runner.open()
        messages = [await client.receive()]
        while messages[-1]["op"] != "refused":
            messages.append(await client.receive())

    assert messages[-1]["id"] == 3
    assert messages[-1]["code"] == "queue_full"
    assert messages[-1]["retry_after_s"] > 0


async def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(address: str) -> None:
    async with _serve(address) as served, served.connection() as client:
        served.runner.open()
        await client.submit(1, [12, 13])
        failed = await client.answer(1)
        await client.submit(2, [2])
        answered = await client.answer(2)
        stats = await client.stats_until(lambda stats: stats["finished"] == 2)

    assert failed == ([], "error")
    assert answered == (_answer(2, 4), "length")
    assert stats["pages_used"] == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x01\x01",
        b"\x00\x00\x00\x08\x81\xa2op\xa3bad",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_frame_closes_that_connection_alone(address: str, sent: bytes) -> None:
    async with _serve(address) as served, served.connection() as sound:
        served.runner.open()
        broken = await LinkClient.connect(served.address)
        broken.writer.write(sent)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await broken.receive()
        broken.writer.close()

        await sound.submit(1, [2])
        assert await sound.answer(1) == (_answer(2, 4), "length")


async def test_stats_name_every_number(address: str) -> None:
    async with _serve(address) as served, served.connection() as client:
        served.runner.open()
        for request_id in (1, 2):
            await client.submit(request_id, list(range(9)))
            await client.answer(request_id)
        stats = await client.stats_until(lambda stats: stats["finished"] == 2)

    histograms = stats.pop("histograms")
    assert histograms.keys() == BOUNDS.keys()
    for bounds, counts, _ in histograms.values():
        assert len(counts) == len(bounds) + 1
    assert stats == {
        "op": "stats", "running": 0, "waiting": 0, "waiting_tokens": 0,
        "num_pages": 32, "pages_used": 0, "pages_cached": 3, "kv_usage": 0.0,
        "prefix_query_tokens": 18, "prefix_hit_tokens": 8, "prefix_copied_tokens": 0, "prompt_tokens": 18,
        "generated_tokens": 8,
        "preemptions": 0, "swapped_out_pages": 0, "swapped_in_pages": 0, "overtakes": 0, "aborted": 0,
        "finished": 2, "refused": 0, "steps": 8,
        "finished_stop": 0, "finished_length": 2, "finished_error": 0, "finished_abort": 0,
    }  # fmt: skip


@pytest.mark.parametrize("bad", ["http://x:1", "unix://", "tcp://nohost", "/tmp/x"])
async def test_an_address_of_no_kind_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="cannot listen at"):
        async with _serve(bad):
            pass
