from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from lab.bench.engine.contestants import Contestant, LlamaCpp, Remote, Running, Shape, bits_of
from lab.bench.engine.figures import Objective
from lab.bench.engine.http_client import CompletionClient
from lab.bench.engine.load import ClosedLoop, OpenLoop
from lab.bench.engine.options import read_ours, read_rivals, read_settings
from lab.bench.engine.processes import ServerFailed, free_port, start, stop, wait_until
from lab.bench.engine.run import Outcome, Plan, Row, run
from lab.bench.engine.server_numbers import parse_metrics
from lab.bench.engine.table import cells, faults, headings, markdown, standings
from lab.bench.process_tree import cpu_s, tree
from tests.lab.bench.engine.fake_server import METRICS, FakeServer, serving, stream_of

PLAN = Plan([ClosedLoop(2, 4)], repeats=1, prompt_words=5, output_tokens=3, objective=Objective(), seed="0")


def _client(url: str) -> CompletionClient:
    return CompletionClient(url, model="m", max_tokens=3, timeout_s=60)


async def test_a_request_asks_for_exactly_so_many_tokens_and_is_timed() -> None:
    stream = stream_of(3)
    async with serving(FakeServer([stream[:40], stream[40:]])) as server:
        answer = (await _client(server.url).ask("hello")).read()

    assert answer.error is None
    assert (answer.output_tokens, answer.prompt_tokens) == (3, 9)
    assert answer.ttft_s is not None
    assert 0 < answer.ttft_s <= answer.e2e_s
    [body] = server.bodies
    assert body["max_tokens"] == 3
    assert body["ignore_eos"] is body["stream"] is True


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (FakeServer([b'{"error": "busy"}'], status="429 Too Many Requests"), "status 429"),
        (FakeServer([stream_of(2, is_whole=False)]), "the stream ended early"),
        (FakeServer([stream_of(2, is_whole=False)], ends=False), "closed the connection"),
        (FakeServer([], status="what?"), "HttpParser"),
    ],
)
async def test_what_goes_wrong_is_in_the_answer(server: FakeServer, told: str) -> None:
    async with serving(server):
        answer = (await _client(server.url).ask("hello")).read()

    assert answer.error is not None
    assert told in answer.error


async def test_nobody_listening_is_in_the_answer_too() -> None:
    answer = (await _client(f"http://127.0.0.1:{free_port()}").ask("hello")).read()

    assert answer.error is not None
    assert "Connection" in answer.error


async def test_every_repeat_goes_through_all_contestants_at_each_load(tmp_path: Path) -> None:
    plan = Plan(
        [ClosedLoop(2, 4), OpenLoop(1000, 3)],
        repeats=2,
        prompt_words=5,
        output_tokens=3,
        objective=Objective(),
        seed="",
    )
    said: list[str] = []
    async with serving(FakeServer([stream_of(3)])) as one, serving(FakeServer([stream_of(3)])) as other:
        contestants = [Remote(one.url, "m", os.getpid()), Remote(other.url, "m", None)]
        outcome = await run(contestants, plan, folder=tmp_path, say=said.append)

    order = [(row.repeat, row.load, row.contestant) for row in outcome.rows]
    assert order == [
        (repeat, load, url) for repeat in (0, 1) for load in ("2 clients", "1000/s") for url in (one.url, other.url)
    ]
    prompts = [[body["prompt"] for body in server.bodies if body["max_tokens"] == 3] for server in (one, other)]
    assert prompts[0] == prompts[1]
    assert len(set(prompts[0])) == 4 + 2 * (4 + 3)  # warm-up, then every run's own
    assert [row.figures.output_tokens for row in outcome.rows] == [12, 12, 9, 9] * 2
    assert outcome.rows[0].server_cpu_s is not None
    assert outcome.rows[1].server_cpu_s is None
    assert outcome.rows[0].server.kv_usage_max == 0.25
    assert outcome.rows[0].server.preemptions == 0


async def test_a_contestant_that_cannot_start_is_left_out_with_its_reason(tmp_path: Path) -> None:
    broken = LlamaCpp(tmp_path / "no-such-server", tmp_path / "no.gguf", "bf16")
    async with serving(FakeServer([stream_of(3)])) as server:
        outcome = await run([broken, Remote(server.url, "m", None)], PLAN, folder=tmp_path, say=lambda line: None)

    assert [row.contestant for row in outcome.rows] == [server.url]
    assert "ended with status 127" in outcome.left_out["llama.cpp bf16"]
    assert any("no-such-server" in fault for fault in faults(outcome))


async def test_answers_of_a_cache_are_counted_and_told(tmp_path: Path) -> None:
    async with serving(FakeServer([stream_of(3)], header="x-lamina-cache: exact\r\n")) as server:
        outcome = await run([Remote(server.url, "m", None)], PLAN, folder=tmp_path, say=lambda line: None)

    assert outcome.rows[0].figures.num_cached == 4
    assert any("change --seed" in fault for fault in faults(outcome))


class Named:
    """Make a server's row look like that of a contestant of this name."""

    def __init__(self, url: str, name: str, *, is_ours: bool) -> None:
        self.name = name
        self._running = Running(name, bits_of(name), is_ours, url, "m")

    async def start(self, folder: Path, shape: Shape) -> list[Running]:
        return [self._running]


async def _compared(tmp_path: Path) -> Outcome:
    names = {"lamina bf16": True, "lamina int8": True, "llama.cpp bf16": False, "llama.cpp q8_0": False}
    async with serving(FakeServer([stream_of(3)])) as server:
        contestants: list[Contestant] = [Named(server.url, name, is_ours=ours) for name, ours in names.items()]
        return await run(contestants, PLAN, folder=tmp_path, say=lambda line: None)


async def test_ours_is_compared_with_the_best_rival_at_equal_bits(tmp_path: Path) -> None:
    outcome = await _compared(tmp_path)

    told = [(standing.bits, standing.ours, standing.rival) for standing in standings(outcome)]
    assert told == [(16, "lamina bf16", "llama.cpp bf16"), (8, "lamina int8", "llama.cpp q8_0")]
    assert all(standing.ratio > 0 for standing in standings(outcome))


async def test_the_table_has_a_line_for_each_and_is_markdown_too(tmp_path: Path) -> None:
    outcome = await _compared(tmp_path)

    lines = cells(outcome)
    assert [line[1] for line in lines] == ["lamina bf16", "lamina int8", "llama.cpp bf16", "llama.cpp q8_0"]
    assert all(len(line) == len(headings()) for line in lines)
    assert "| 2 clients | 16 | lamina bf16 | llama.cpp bf16 |" in markdown(outcome)
    assert isinstance(outcome.rows[0], Row)


async def test_a_server_is_watched_timed_and_ended_with_its_family(tmp_path: Path) -> None:
    port = free_port()
    command = ["sh", "-c", f"{sys.executable} -m http.server --bind 127.0.0.1 {port}; true"]
    process = start("files", command, folder=tmp_path)
    try:
        await wait_until(process, ("127.0.0.1", port), "/", timeout_s=60)
        family = [psutil.Process(pid) for pid in tree(process.pid)]
        assert len(family) == 2
        assert cpu_s(process.pid, with_ended=True) > 0
    finally:
        await stop(process)

    async with asyncio.timeout(60):
        # The kernel ends them in its own time, and tells nobody.
        while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(ServerFailed, match="files ended"):
        process.check()


def test_numbers_of_a_server_are_read_without_their_labels() -> None:
    numbers = parse_metrics(METRICS + 'a{le="1"} 2\na{le="2"} 3\n')

    assert numbers["vllm:prefix_cache_hits_total"] == 25
    assert numbers["a"] == 5


@pytest.mark.parametrize(
    ("label", "bits"), [("bf16", 16), ("Q8_0", 8), ("q4_1", 4), ("int8", 8), ("int4", 4), ("fp32", 32), ("x", 0)]
)
def test_a_precision_s_name_says_its_bits(label: str, bits: int) -> None:
    assert bits_of(label) == bits


def test_settings_of_ours_are_read_with_their_types() -> None:
    assert read_settings(["engine.prefix_cache=false", "engine.policy=fcfs", "engine.page_size=1"]) == {
        "engine": {"prefix_cache": False, "policy": "fcfs", "page_size": 1}
    }


@pytest.mark.parametrize("text", ["engine=1", "engine.page_size", "page_size=1"])
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_settings([text])


def test_rivals_that_were_not_found_say_what_is_needed(tmp_path: Path) -> None:
    for name, wanted in (("llama.cpp", "--llama-server"), ("vllm", "--vllm"), ("other", "llama.cpp, vllm")):
        with pytest.raises(ValueError, match=wanted):
            read_rivals(name, llama_server=None, gguf=[], vllm=None, model=None)
    with pytest.raises(ValueError, match="there is no"):
        read_rivals("llama.cpp", llama_server=tmp_path / "none", gguf=["x.gguf"], vllm=None, model=None)
    with pytest.raises(ValueError, match="int2"):
        read_ours("int2", [], with_link=False)


def test_a_gguf_is_called_by_its_label_or_the_end_of_its_name(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    for file in (server, tmp_path / "model-q8_0.gguf"):
        file.touch()
    gguf = [str(tmp_path / "model-q8_0.gguf"), f"bf16={tmp_path / 'model-q8_0.gguf'}"]

    rivals = read_rivals("llama.cpp", llama_server=server, gguf=gguf, vllm=None, model=None)

    assert [rival.name for rival in rivals] == ["llama.cpp q8_0", "llama.cpp bf16"]
