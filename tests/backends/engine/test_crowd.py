"""Many requests at once, and more than memory holds: all are answered or told, none is fatal."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from backends.engine.config import EngineConfig
from backends.engine.core import EngineCore
from backends.engine.loop import EngineLoop, Report
from backends.engine.model.loader import LoadedModel
from backends.engine.runner.runner import Runner
from backends.engine.sched.queue import POLICIES
from backends.engine.types import FinishReason, RefusalCode, Refused, SamplingParams, Submission
from tests.backends.engine.fakes import Bench, answer, config, submission

GreedyCheck = Callable[[Sequence[int], Sequence[int]], None]


def _tiny_settings(model: LoadedModel, **changes: object) -> EngineConfig:
    base = EngineConfig(
        vocab_size=model.shape.vocab_size, max_len=model.shape.max_len, eos_ids=model.shape.eos_ids, num_pages=512,
        max_num_seqs=64, max_batched_tokens=256,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


class _Crowd:
    """The engine's thread over a real model, and what it gave to each ticket."""

    def __init__(self, loop: EngineLoop, core: EngineCore, reports: queue.Queue[Report]) -> None:
        self.loop = loop
        self.core = core
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.ends: dict[int, FinishReason | RefusalCode] = {}
        self._reports = reports

    def submit(self, ticket: int, submitted: Submission) -> None:
        self.tokens[ticket] = ()
        try:
            self.loop.submit(ticket, submitted)
        except Refused as refused:
            self.ends[ticket] = refused.code

    def wait(self) -> None:
        """Return when every ticket has ended."""
        while len(self.ends) < len(self.tokens):
            report = self._reports.get(timeout=60)
            for ticket, output in report.outputs:
                self.tokens[ticket] += output.tokens
                if output.finish is not None:
                    self.ends[ticket] = output.finish
            self.ends.update((ticket, refused.code) for ticket, refused in report.refusals)


@contextmanager
def _crowd(model: LoadedModel, settings: EngineConfig) -> Iterator[_Crowd]:
    reports: queue.Queue[Report] = queue.Queue()
    core = EngineCore(
        settings, Runner(model, num_pages=settings.num_pages, page_size=settings.page_size), new_seed=lambda: 1
    )
    crashes: list[None] = []
    loop = EngineLoop(core, deliver=reports.put, crashed=lambda: crashes.append(None))
    loop.start()
    try:
        yield _Crowd(loop, core, reports)
    finally:
        loop.close()
    assert not crashes
    core.check()
    assert core.stats()["pages_used"] == 0


def _greedy(prompt: Sequence[int], max_tokens: int) -> Submission:
    return Submission(tuple(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_500_at_once_are_all_answered(policy: str) -> None:
    bench = Bench(config(num_pages=256, max_num_seqs=64, max_batched_tokens=128, policy=policy))
    draw = random.Random(1)
    asked = [([draw.randrange(40) for _ in range(draw.randint(1, 20))], draw.randint(1, 20)) for _ in range(500)]
    keys = [
        bench.submit(submission(prompt, max_tokens=count, salt=str(number % 7), priority=number % 3))
        for number, (prompt, count) in enumerate(asked)
    ]
    bench.finish()

    assert [bench.tokens(key) for key in keys] == [answer(*each) for each in asked]
    assert bench.num_used == 0


def test_500_at_once_are_all_answered_by_a_model(tiny_model: LoadedModel, tiny_greedy: GreedyCheck) -> None:
    draw = random.Random(2)
    prompts = [[draw.randrange(96) for _ in range(draw.randint(1, 24))] for _ in range(500)]
    with _crowd(tiny_model, _tiny_settings(tiny_model)) as crowd:
        for ticket, prompt in enumerate(prompts):
            crowd.submit(ticket, _greedy(prompt, 8))
        crowd.wait()

    assert set(crowd.ends.values()) == {FinishReason.LENGTH}
    for ticket in range(0, 500, 10):
        tiny_greedy(prompts[ticket], crowd.tokens[ticket])


@pytest.mark.parametrize("admission", ["future_peak", "greedy", "reserve"])
def test_a_flood_of_prompts_beyond_the_pool_is_served_queued_or_refused_and_never_fatal(
    tiny_model: LoadedModel, tiny_greedy: GreedyCheck, admission: str
) -> None:
    # 12 pages of 16 tokens; 60 prompts want 4 to 13 pages each, and 30 may wait.
    settings = _tiny_settings(tiny_model, num_pages=12, max_waiting=30, admission=admission)
    draw = random.Random(3)
    prompts = [[draw.randrange(96) for _ in range(draw.randint(40, 190))] for _ in range(60)]
    with _crowd(tiny_model, settings) as crowd:
        for ticket, prompt in enumerate(prompts):
            crowd.submit(ticket, _greedy(prompt, 20))
        crowd.wait()
        crowd.submit(1000, _greedy([5, 6, 7], 4))  # and it goes on as if nothing had been
        crowd.wait()
        preemptions = crowd.core.stats()["preemptions"]

    assert len(crowd.ends) == 61
    assert crowd.ends[1000] is FinishReason.LENGTH
    if admission == "reserve":
        assert preemptions == 0
    for ticket, prompt in enumerate(prompts):
        if len(prompt) + 20 - 1 > 12 * 16:
            assert crowd.ends[ticket] is RefusalCode.NEVER_FITS
        else:
            assert crowd.ends[ticket] in {FinishReason.LENGTH, RefusalCode.QUEUE_FULL}
    served = [ticket for ticket, end in crowd.ends.items() if end is FinishReason.LENGTH and ticket < 1000]
    assert len(served) >= 20
    for ticket in served[::5]:
        tiny_greedy(prompts[ticket], crowd.tokens[ticket])


def test_an_answer_beyond_what_was_predicted_is_mended_by_preemption(
    tiny_model: LoadedModel, tiny_greedy: GreedyCheck
) -> None:
    # Short answers teach the predictor to expect short ones; then all get long, and memory is short.
    settings = _tiny_settings(tiny_model, num_pages=24, prefix_cache=False)
    draw = random.Random(4)
    prompts = [[draw.randrange(96) for _ in range(30)] for _ in range(40)]
    with _crowd(tiny_model, settings) as crowd:
        for ticket, prompt in enumerate(prompts[:20]):
            crowd.submit(ticket, _greedy(prompt, 1 + ticket % 3))
        crowd.wait()
        for ticket, prompt in enumerate(prompts[20:], start=20):
            crowd.submit(ticket, _greedy(prompt, 60))
        crowd.wait()
        preemptions = crowd.core.stats()["preemptions"]

    assert preemptions > 0
    assert set(crowd.ends.values()) == {FinishReason.LENGTH}
    for ticket in range(20, 40, 4):
        tiny_greedy(prompts[ticket], crowd.tokens[ticket])
