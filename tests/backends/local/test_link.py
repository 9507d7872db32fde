from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.local.capacity import Capacity
from backends.local.frames import FrameError, FrameReader, encode_frame
from backends.local.generation import Generation, Submission
from backends.local.link import EngineLink, HistogramCounts
from orchestration.core.errors import BackendError, BackendTimeout, BackendUnavailable
from tests.backends.fake_engine import FakeEngine, step

ONE = Submission(prompt=[1, 2], max_tokens=4)


async def test_info_is_asked_once_per_connection(engine: FakeEngine, link: EngineLink) -> None:
    first, second = await link.info(), await link.info()

    assert first == second
    assert (first.name, first.max_len, first.eos_ids) == ("real-model", 256, (2,))
    assert first.capacity == Capacity(tokens=256, context=256)
    assert engine.num_connections == 1


async def test_many_calls_share_one_connection(engine: FakeEngine, link: EngineLink) -> None:
    engine.on_submit = lambda message: [step(message["id"], [message["prompt"][0]], finish="length")]

    async def ask(token: int) -> list[int]:
        generation = await link.submit([Submission(prompt=[token], max_tokens=1)])
        return (await generation.take())[0].token_ids

    assert await asyncio.gather(*map(ask, range(50))) == [[token] for token in range(50)]
    assert engine.num_connections == 1


async def test_stats_are_numbers(link: EngineLink) -> None:
    assert await link.stats() == {"running": 3.0, "kv_usage": 0.5}


async def test_measures_have_the_histograms_of_an_engine_that_has_some(engine: FakeEngine, link: EngineLink) -> None:
    assert (await link.measures()).histograms == {}

    engine.stats["histograms"] = {"step_seconds": [[0.5, 1], [1, 2, 4], 7.5]}
    measures = await link.measures()

    assert measures.model == "real-model"
    assert measures.numbers == {"running": 3.0, "kv_usage": 0.5}
    assert measures.histograms == {"step_seconds": HistogramCounts((0.5, 1), (1, 2, 4), 7.5)}


async def test_times_that_the_engine_tells_are_kept_by_sequence(engine: FakeEngine, link: EngineLink) -> None:
    engine.on_submit = lambda message: [
        {**step(message["id"], [5]), "events": [[message["id"], {"queued": 0.0}], [999, {"queued": 0.0}]]},
        {**step(message["id"], [6], finish="stop"), "events": [[message["id"], {"queued": 0.0, "finished": 9.0}]]},
    ]
    generation = await link.submit([Submission([1], max_tokens=4), Submission([2], max_tokens=4)])
    finished = 0
    while finished < 2:
        finished += sum(each.finish is not None for each in await generation.take())

    assert generation.events == [{"queued": 0.0, "finished": 9.0}] * 2


async def test_steps_that_were_not_read_are_grouped(engine: FakeEngine, link: EngineLink) -> None:
    engine.on_submit = lambda message: [
        step(message["id"], [7], logprobs=[[-1.0, []]], cached=1),
        step(message["id"], [8, 9], logprobs=[[-2.0, []], [-3.0, []]], finish="stop", cached=1),
    ]
    generation = await link.submit([ONE])
    await link.stats()  # comes behind the steps

    (ready,) = await generation.take()

    assert (ready.token_ids, ready.finish, ready.cached_tokens) == ([7, 8, 9], "stop", 1)
    assert ready.logprobs == [[-1.0, []], [-2.0, []], [-3.0, []]]


async def test_nothing_comes_for_an_aborted_sequence(engine: FakeEngine, link: EngineLink) -> None:
    generation = await link.submit([ONE, ONE])
    generation.abort(0)
    first = (await engine.next_message("abort"))["id"]

    engine.send({"op": "step", "rows": [[first, [5], None, None, 0], [first + 1, [6], None, "length", 0]]})

    assert [(ready.index, ready.token_ids) for ready in await generation.take()] == [(1, [6])]


async def test_a_finished_sequence_is_not_aborted(engine: FakeEngine, link: EngineLink) -> None:
    engine.on_submit = lambda message: [step(message["id"], [5], finish="length")]
    generation = await link.submit([ONE])
    await generation.take()

    generation.close()
    engine.on_submit = lambda message: ()
    unfinished = await link.submit([ONE])
    unfinished.close()

    assert (await engine.next_message("abort"))["id"] == engine.submitted[1]["id"]


async def test_more_tokens_than_asked_for_end_the_call(engine: FakeEngine, link: EngineLink) -> None:
    engine.on_submit = lambda message: [step(message["id"], [5] * 5)]
    generation = await link.submit([ONE])

    with pytest.raises(BackendError, match="more than the 4 tokens"):
        await generation.take()
    await engine.next_message("abort")


def test_a_reader_that_stalls_loses_the_call() -> None:
    now = [0.0]
    aborted: list[int] = []
    generation = Generation([100], abort=aborted.append, now=lambda: now[0], stall_s=60.0)

    generation.push(0, [[1], None, None, 0])
    now[0] = 59.0
    generation.push(0, [[2], None, None, 0])
    assert aborted == []
    now[0] = 61.0
    generation.push(0, [[3], None, None, 0])

    assert aborted == [0]


async def test_a_stalled_reader_gets_what_came_and_then_the_reason() -> None:
    now = [0.0]
    generation = Generation([100, 100], abort=lambda index: None, now=lambda: now[0], stall_s=1.0)
    generation.push(0, [[1], None, "stop", 0])
    now[0] = 2.0
    generation.push(1, [[2], None, None, 0])

    assert [ready.token_ids for ready in await generation.take()] == [[1]]
    with pytest.raises(BackendTimeout, match="not read"):
        await generation.take()


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack(">I", 2**31),
        struct.pack(">I", 1) + b"\xc1",
        encode_frame({"op": "step"}),
        encode_frame({"op": "step", "rows": [[1, 2]]}),
        encode_frame({"op": "step", "rows": [[1, None, None, None, 0]]}),
        encode_frame({"op": "refused", "id": 1}),
        struct.pack(">I", 3) + b"\xa2ab",
    ],
)
async def test_nonsense_ends_the_connection_and_its_calls(
    engine: FakeEngine, link: EngineLink, nonsense: bytes
) -> None:
    generation = await link.submit([ONE])

    engine.send_bytes(nonsense)

    with pytest.raises(BackendUnavailable, match="not as agreed"):
        await generation.take()
    assert await link.info()
    assert engine.num_connections == 2


async def test_an_unknown_word_of_the_engine_is_passed_over(engine: FakeEngine, link: EngineLink) -> None:
    await link.info()
    engine.send({"op": "news", "what": 1})

    assert await link.stats()
    assert engine.num_connections == 1


async def test_while_nobody_listens_tries_are_spaced(short_folder: Path) -> None:
    link = EngineLink(f"unix://{short_folder / 'nobody.sock'}")
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        await link.info()

    with pytest.raises(BackendUnavailable) as caught:
        await link.info()

    assert caught.value.retry_after_s == 1.0  # sooner than that no engine is back


async def test_an_engine_that_says_no_hello_is_unavailable(engine: FakeEngine) -> None:
    engine.info = {"op": "something"}
    link = EngineLink(engine.address, connect_s=0.1)

    with pytest.raises(BackendUnavailable, match="no answer within"):
        await link.info()
    await engine.next_message("gone")


async def test_an_engine_whose_info_lacks_a_field_is_unavailable(engine: FakeEngine) -> None:
    del engine.info["max_len"]
    link = EngineLink(engine.address)

    with pytest.raises(BackendUnavailable, match="max_len"):
        await link.info()
    await engine.next_message("gone")


async def test_closing_ends_calls_and_refuses_new_ones(engine: FakeEngine, link: EngineLink) -> None:
    generation = await link.submit([ONE])

    await link.aclose()

    with pytest.raises(BackendUnavailable):
        await generation.take()
    with pytest.raises(BackendUnavailable, match="closed"):
        await link.submit([ONE])


async def test_the_engine_is_reached_over_tcp() -> None:
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(encode_frame(FakeEngine(Path("unused")).info))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        is_over.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    link = EngineLink(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    assert (await link.info()).name == "real-model"
    await link.aclose()
    await is_over.wait()
    server.close()


@pytest.mark.parametrize("address", ["", "/tmp/x", "http://x:1", "tcp://x", "unix://", "tcp://:80"])
def test_a_wrong_address_is_refused_when_it_is_set(address: str) -> None:
    with pytest.raises(ValueError, match="unix:///path or tcp://host:port"):
        EngineLink(address)


@given(
    messages=st.lists(st.dictionaries(st.just("op"), st.text(max_size=9), min_size=1), max_size=4),
    size=st.integers(1, 9),
)
def test_frames_are_read_wherever_they_are_cut(messages: list[dict[str, str]], size: int) -> None:
    data = b"".join(map(encode_frame, messages))
    reader = FrameReader()

    read = [message for begin in range(0, len(data), size) for message in reader.feed(data[begin : begin + size])]

    assert read == messages


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="limit"):
        FrameReader().feed(b"\xff\xff\xff\xff")
