from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.core import EngineCore
from backends.engine.journal import Journal
from backends.engine.loop import EngineLoop, Report
from backends.engine.numbers import BOUNDS, Histogram
from backends.engine.sched.decision import Decision, Row
from backends.engine.types import FinishReason, Output, Sampled
from backends.engine.wire import step_message
from tests.backends.engine.fakes import config, submission


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _decision(*keys: int, preempted: Sequence[int] = ()) -> Decision:
    return Decision(1, tuple(Row(key, 0, (5, 6), (0,), None) for key in keys), tuple(preempted))


def _output(key: int, *, finish: FinishReason | None = None) -> Output:
    return Output(key, (7,), None, finish, 0)


def _sums(journal: Journal) -> Mapping[str, float]:
    return {name: total for name, (_, _, total) in journal.histograms.snapshot().items()}


def test_a_request_s_times_are_told_from_its_queueing_on() -> None:
    clock = Clock()
    journal = Journal(clock=clock)
    journal.queued(1, at_s=100.0, num_prompt_tokens=9)
    clock.now_s = 100.5
    journal.computing(_decision(1))
    clock.now_s = 101.0
    [first] = journal.gave([_output(1)])
    clock.now_s = 101.25
    [quiet] = journal.gave([_output(1)])
    clock.now_s = 102.0
    [last] = journal.gave([_output(1, finish=FinishReason.LENGTH)])

    assert first.events == {"queued": 0.0, "admitted": 500.0, "first_token": 1000.0}
    assert quiet.events is None
    assert last.events == {"queued": 0.0, "admitted": 500.0, "first_token": 1000.0, "finished": 2000.0}
    assert journal.num_live == 0
    sums = _sums(journal)
    assert sums["request_queue_time_seconds"] == 0.5
    assert sums["request_prefill_time_seconds"] == 0.5
    assert sums["request_decode_time_seconds"] == sums["inter_token_latency_seconds"] == 1.0
    assert sums["request_inference_time_seconds"] == 1.5
    assert sums["e2e_request_latency_seconds"] == 2.0
    assert sums["request_time_per_output_token_seconds"] == 0.5
    assert (sums["request_prompt_tokens"], sums["request_generation_tokens"]) == (9, 3)
    assert sums["iteration_tokens_total"] == 2


def test_giving_way_is_told_with_the_next_token() -> None:
    clock = Clock()
    journal = Journal(clock=clock)
    journal.queued(1, at_s=100.0, num_prompt_tokens=2)
    journal.computing(_decision(1))
    journal.gave([_output(1)])
    for later_s in (101.0, 102.0):
        clock.now_s = later_s
        journal.computing(_decision(2, preempted=[1]))
    clock.now_s = 103.0
    journal.computing(_decision(1))

    [output] = journal.gave([_output(1)])

    assert output.events == {"queued": 0.0, "admitted": 0.0, "first_token": 0.0, "preempted": [1000.0, 2000.0]}
    assert _sums(journal)["request_queue_time_seconds"] == 0  # it waits anew, but it was admitted once


def test_ends_are_counted_by_their_reason_and_nothing_is_kept_of_them() -> None:
    journal = Journal()
    for key in (1, 2, 3, 4):
        journal.queued(key, at_s=0.0, num_prompt_tokens=1)
    for key, reason in zip((1, 2, 3), FinishReason, strict=True):
        journal.gave([_output(key, finish=reason)])
    journal.aborted(4)
    journal.aborted(4)

    assert journal.counts() == {
        "finished_stop": 1,
        "finished_length": 1,
        "finished_error": 1,
        "finished_abort": 1,
    }
    assert journal.num_live == 0
    assert journal.gave([_output(4)])[0].events is None


def test_a_request_that_gives_way_without_end_takes_bounded_memory() -> None:
    journal = Journal(max_preemptions=3)
    journal.queued(1, at_s=0.0, num_prompt_tokens=1)
    for _ in range(100):
        journal.computing(_decision(preempted=[1]))
        journal.gave([])

    [output] = journal.gave([_output(1)])

    assert output.events is not None
    assert len(output.events["preempted"]) == 3  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1000, allow_nan=False), max_size=50))
def test_a_histogram_counts_as_prometheus_does(values: list[float]) -> None:
    histogram = Histogram(BOUNDS["time_to_first_token_seconds"])
    for value in values:
        histogram.observe(value)

    expected = [sum(value <= bound for value in values) for bound in histogram.bounds]
    assert histogram.cumulative() == [*expected, len(values)]
    assert histogram.total == pytest.approx(sum(values))


def test_bounds_grow() -> None:
    assert all(list(bounds) == sorted(set(bounds)) for bounds in BOUNDS.values())


def test_events_stand_beside_the_rows_so_that_older_readers_pass_them_by() -> None:
    plain = Output(1, (7,), None, None, 0)
    told = Output(2, (8,), None, FinishReason.STOP, 3, {"queued": 0.0, "finished": 5.0})

    assert step_message([(11, plain)]) == {"op": "step", "rows": [[11, [7], None, None, 0]]}
    assert step_message([(11, plain), (12, told)]) == {
        "op": "step",
        "rows": [[11, [7], None, None, 0], [12, [8], None, "stop", 3]],
        "events": [[12, {"queued": 0.0, "finished": 5.0}]],
    }


class ZeroRunner:
    """Draw zeros."""

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Draw."""
        return [Sampled(row.key, 0) for row in decision.rows if row.draw is not None]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_tells_every_request_s_times_and_counts_each_once(overlap: bool) -> None:
    reports: queue.Queue[Report] = queue.Queue()
    journal = Journal()
    core = EngineCore(config(), journal.watch(ZeroRunner()), new_seed=lambda: 1, overlap=overlap)
    loop = EngineLoop(core, deliver=reports.put, crashed=lambda: None, journal=journal)
    loop.start()
    events: dict[int, Any] = {}
    try:
        for ticket in range(12):
            loop.submit(ticket, submission([1, 2, ticket], max_tokens=5))
        while sum("finished" in told for told in events.values()) < 12:
            for ticket, output in reports.get(timeout=60).outputs:
                events[ticket] = output.events or events.get(ticket, {})
        numbers, histograms = loop.stats(), loop.histograms()
    finally:
        loop.close()

    for told in events.values():
        assert 0 <= told["queued"] <= told["admitted"] <= told["first_token"] <= told["finished"]
    assert numbers["finished_length"] == 12
    for name in ("e2e_request_latency_seconds", "request_queue_time_seconds", "time_to_first_token_seconds"):
        assert histograms[name][1][-1] == 12
    assert histograms["inter_token_latency_seconds"][1][-1] == 12 * 4
    assert histograms["step_seconds"][1][-1] >= 5
    assert journal.num_live == 0
