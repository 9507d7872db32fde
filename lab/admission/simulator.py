"""The real scheduler, driven by a trace, on a simulated machine: the same input gives the same figures anywhere."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.engine.config import EngineConfig
from backends.engine.sched.decision import Decision
from backends.engine.sched.scheduler import Scheduler
from backends.engine.types import Output, Sampled, SamplingParams, Submission
from lab.admission.machine import Machine
from lab.admission.trace import Arrival

_VOCAB_SIZE = 50_000
_EOS = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What one policy made of a trace; times in seconds of the simulated clock, in the order of the requests.

    `computed_tokens` counts what was computed, `wasted_tokens` what of it had been computed before and was lost.
    """

    wall_s: float
    ttft_s: Sequence[float]
    tpot_s: Sequence[float]
    e2e_s: Sequence[float]
    output_tokens: int
    computed_tokens: int
    wasted_tokens: int
    preemptions: int
    steps: int
    mean_running: float
    mean_kv_usage: float

    @property
    def output_tokens_per_s(self) -> float:
        """Return the throughput from the first arrival to the last end."""
        return self.output_tokens / self.wall_s


@dataclass(slots=True)
class _Life:
    """One request's times and how much of it was ever computed."""

    arrival: Arrival
    first_s: float = 0.0
    ended_s: float = 0.0
    num_generated: int = 0
    num_computed: int = 0


class Simulator:
    """Run a trace to its end under one policy and page size."""

    def __init__(self, machine: Machine, *, admission: str, page_size: int, policy: str = "fcfs") -> None:
        self._machine = machine
        self._now_s = 0.0
        self._scheduler = Scheduler(
            EngineConfig(
                vocab_size=_VOCAB_SIZE,
                max_len=8192,
                eos_ids=frozenset({_EOS}),
                num_pages=machine.kv_tokens // page_size,
                page_size=page_size,
                max_num_seqs=machine.max_num_seqs,
                max_batched_tokens=machine.max_batched_tokens,
                max_waiting=1_000_000,
                admission=admission,
                policy=policy,
            ),
            clock=lambda: self._now_s,
        )
        self._lives: dict[int, _Life] = {}
        self._computed = self._wasted = self._steps = 0
        self._running_s = self._usage_s = self._busy_s = 0.0

    def run(self, trace: Sequence[Arrival], *, seed: int = 0) -> Result:
        """Return what became of the trace."""
        draw, coming = random.Random(seed), list(reversed(trace))
        while coming or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self._now_s = max(self._now_s, coming[-1].at_s)
            while coming and coming[-1].at_s <= self._now_s:
                self._submit(coming.pop(), draw)
            self._step()
        return self._result()

    def _submit(self, arrival: Arrival, draw: random.Random) -> None:
        key = len(self._lives) + 1
        self._lives[key] = _Life(arrival)
        prompt = tuple(draw.choices(range(1, _VOCAB_SIZE), k=arrival.prompt_tokens))
        params = SamplingParams(max_tokens=arrival.max_tokens, temperature=0.0)
        self._scheduler.submit(key, Submission(prompt, params), seed=0)

    def _step(self) -> None:
        decision = self._scheduler.schedule()
        cost_s = self._machine.cost_s(
            num_tokens=decision.num_tokens, num_kv_tokens=sum(row.end for row in decision.rows)
        )
        pool, tree = self._scheduler.kv.pool, self._scheduler.kv.tree
        self._running_s += cost_s * self._scheduler.num_running
        self._usage_s += cost_s * (1 - (pool.num_free + tree.num_evictable) / pool.num_pages)
        self._busy_s += cost_s
        self._now_s += cost_s
        self._steps += 1
        for output in self._scheduler.apply(decision, self._compute(decision)):
            self._note(output)

    def _compute(self, decision: Decision) -> Sequence[Sampled]:
        """Draw a token for every row that draws: the end where the trace says so."""
        sampled = []
        for row in decision.rows:
            life = self._lives[row.key]
            self._computed += row.count
            self._wasted += max(0, min(row.end, life.num_computed) - row.start)
            life.num_computed = max(life.num_computed, row.end)
            if row.draw is not None:
                is_last = life.num_generated + 1 >= life.arrival.output_tokens
                sampled.append(Sampled(row.key, _EOS if is_last else 1 + row.end % (_VOCAB_SIZE - 1)))
        return sampled

    def _note(self, output: Output) -> None:
        life = self._lives[output.key]
        life.num_generated += len(output.tokens)
        life.first_s = life.first_s or self._now_s
        if output.finish is not None:
            life.ended_s = self._now_s

    def _result(self) -> Result:
        lives = list(self._lives.values())
        return Result(
            wall_s=max(life.ended_s for life in lives) - lives[0].arrival.at_s,
            ttft_s=[life.first_s - life.arrival.at_s for life in lives],
            tpot_s=[
                (life.ended_s - life.first_s) / (life.num_generated - 1) for life in lives if life.num_generated > 1
            ],
            e2e_s=[life.ended_s - life.arrival.at_s for life in lives],
            output_tokens=sum(life.num_generated for life in lives),
            computed_tokens=self._computed,
            wasted_tokens=self._wasted,
            preemptions=self._scheduler.counters.preemptions,
            steps=self._steps,
            mean_running=self._running_s / self._busy_s,
            mean_kv_usage=self._usage_s / self._busy_s,
        )


def compare(
    machine: Machine, trace: Sequence[Arrival], *, admissions: Sequence[str], page_sizes: Sequence[int]
) -> Mapping[tuple[str, int], Result]:
    """Run the same trace under each policy and page size."""
    return {
        (admission, page_size): Simulator(machine, admission=admission, page_size=page_size).run(trace)
        for page_size in page_sizes
        for admission in admissions
    }
