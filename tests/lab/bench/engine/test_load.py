from __future__ import annotations

import asyncio
import itertools
import statistics

import pytest

from lab.bench.engine.load import ClosedLoop, OpenLoop, arrivals, run_load
from lab.bench.engine.options import default_rounds
from lab.bench.engine.prompts import make_prompts, make_token_prompts


async def test_a_closed_loop_keeps_so_many_alive_and_no_more() -> None:
    alive = most = 0

    async def ask(number: int) -> int:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await asyncio.sleep(0)
        alive -= 1
        return number

    assert await run_load(ClosedLoop(4, 19), ask, seed="") == list(range(19))
    assert most == 4


async def test_an_open_loop_waits_for_nobody() -> None:
    together = asyncio.Barrier(8)

    async def ask(number: int) -> int:
        await together.wait()  # none of them ends before all of them were sent
        return number

    async with asyncio.timeout(30):
        assert await run_load(OpenLoop(1000, 8), ask, seed="") == list(range(8))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    times = arrivals(OpenLoop(20, 20_000, burstiness), seed="7")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]

    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert (statistics.fmean(gaps) / statistics.stdev(gaps)) ** 2 == pytest.approx(burstiness, rel=0.1)
    assert times == arrivals(OpenLoop(20, 20_000, burstiness), seed="7")


def test_prompts_are_the_same_for_a_seed_and_different_otherwise() -> None:
    prompts = make_prompts(64, num_words=64, seed="a")

    assert prompts == make_prompts(64, num_words=64, seed="a")
    assert len({*prompts, *make_prompts(64, num_words=64, seed="b")}) == 128
    assert all(len(prompt.split()) == 64 for prompt in prompts)


def test_prompts_of_ids_are_ids_of_the_model() -> None:
    for prompt in make_token_prompts(8, num_tokens=64, seed="a", vocab_size=1000):
        assert len(prompt) == 64
        assert all(0 < token < 1000 for token in prompt)


def test_each_load_takes_about_as_long() -> None:
    assert [default_rounds(count) for count in (1, 4, 16, 64, 500)] == [4, 3, 2, 1, 1]
