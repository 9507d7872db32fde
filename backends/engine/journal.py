"""The journal: when each request was queued, admitted, gave its first token, gave way and ended.

It reads what the engine says anyway, decisions and outputs, and decides nothing.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from backends.engine.numbers import Histograms
from backends.engine.sched.decision import Decision
from backends.engine.types import Events, FinishReason, Output, Sampled

_REASONS = (*(reason.value for reason in FinishReason), "abort")


@dataclass(slots=True)
class Times:
    """One request's times in seconds of the engine's monotonic clock; None for what has not happened."""

    queued_s: float
    num_prompt_tokens: int
    admitted_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    preempted_s: list[float] = field(default_factory=list)
    has_news: bool = False

    def as_events(self, now_s: float, finish: FinishReason | None) -> Events:
        """Return what happened, each in milliseconds since the request was queued."""
        events: dict[str, float | Sequence[float]] = {"queued": 0.0}
        if self.admitted_s is not None:
            events["admitted"] = self._ms(self.admitted_s)
        if self.first_s is not None:
            events["first_token"] = self._ms(self.first_s)
        if self.preempted_s:
            events["preempted"] = [self._ms(at_s) for at_s in self.preempted_s]
        if finish is not None:
            events["finished"] = self._ms(now_s)
        return events

    def _ms(self, at_s: float) -> float:
        return round((at_s - self.queued_s) * 1e3, 3)


class StepRunner(Protocol):
    """Computes decisions."""

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Return what was drawn for each row that draws; may raise."""


class Journal:
    """Follow every live request; an ended one is forgotten, and only counted.

    All is called in the engine's thread but for `computing` and `computed`, which any one thread may call, and for
    reading the numbers, which are then at most a step old. The first `max_preemptions` of a request have their times.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, max_preemptions: int = 64) -> None:
        self.histograms = Histograms()
        self.finished: Counter[str] = Counter()
        self._clock = clock
        self._max_preemptions = max_preemptions
        self._decisions: deque[tuple[float, Decision]] = deque()
        self._step_times: deque[float] = deque()
        self._live: dict[int, Times] = {}

    @property
    def num_live(self) -> int:
        """Return how many requests are followed."""
        return len(self._live)

    def watch(self, runner: StepRunner) -> StepRunner:
        """Return the runner, its decisions noted as they are computed."""
        return _Watched(runner, self)

    def queued(self, key: int, *, at_s: float, num_prompt_tokens: int) -> None:
        """Note that a request was taken."""
        self._live[key] = Times(at_s, num_prompt_tokens)

    def computing(self, decision: Decision) -> float:
        """Note a decision as its computation begins; returns when that was."""
        begun_s = self._clock()
        self._decisions.append((begun_s, decision))
        return begun_s

    def computed(self, begun_s: float) -> None:
        """Note the end of a computation."""
        self._step_times.append(self._clock() - begun_s)

    def gave(self, outputs: Iterable[Output]) -> list[Output]:
        """Note what a step gave; returns it, with the events of those to whom something new happened."""
        self._catch_up()
        now_s = self._clock()
        return [self._noted(output, now_s) for output in outputs]

    def counts(self) -> Mapping[str, float]:
        """Return how many requests ended for which reason."""
        return {f"finished_{reason}": self.finished[reason] for reason in _REASONS}

    def aborted(self, key: int) -> None:
        """Note that a request was ended from outside."""
        if self._live.pop(key, None) is not None:
            self.finished["abort"] += 1

    def _catch_up(self) -> None:
        """Note who began and who gave way in the decisions that were computed meanwhile."""
        while self._step_times:
            self.histograms["step_seconds"].observe(self._step_times.popleft())
        while self._decisions:
            at_s, decision = self._decisions.popleft()
            if decision.rows:
                self.histograms["iteration_tokens_total"].observe(decision.num_tokens)
            for key in decision.preempted:
                times = self._live.get(key)
                if times is not None and len(times.preempted_s) < self._max_preemptions:
                    times.preempted_s.append(at_s)
                    times.has_news = True
            for row in decision.rows:
                times = self._live.get(row.key)
                if times is not None and times.admitted_s is None:
                    times.admitted_s = at_s
                    self.histograms["request_queue_time_seconds"].observe(at_s - times.queued_s)

    def _noted(self, output: Output, now_s: float) -> Output:
        times = self._live.get(output.key)
        if times is None:
            return output
        if output.tokens:
            self._note_tokens(times, len(output.tokens), now_s)
        if output.finish is not None:
            self._note_end(output.key, times, now_s, output.finish)
        elif not times.has_news:
            return output
        times.has_news = False
        return replace(output, events=times.as_events(now_s, output.finish))

    def _note_tokens(self, times: Times, count: int, now_s: float) -> None:
        if times.first_s is None:
            times.first_s = now_s
            times.has_news = True
            self.histograms["time_to_first_token_seconds"].observe(now_s - times.queued_s)
        else:
            self.histograms["inter_token_latency_seconds"].observe(now_s - times.last_s)
        times.last_s = now_s
        times.num_tokens += count

    def _note_end(self, key: int, times: Times, now_s: float, finish: FinishReason) -> None:
        del self._live[key]
        self.finished[finish.value] += 1
        observe = self._observe
        observe("request_prompt_tokens", times.num_prompt_tokens)
        observe("request_generation_tokens", times.num_tokens)
        observe("e2e_request_latency_seconds", now_s - times.queued_s)
        if times.admitted_s is None or times.first_s is None:
            return
        observe("request_prefill_time_seconds", times.first_s - times.admitted_s)
        observe("request_decode_time_seconds", times.last_s - times.first_s)
        observe("request_inference_time_seconds", times.last_s - times.admitted_s)
        if times.num_tokens > 1:
            observe("request_time_per_output_token_seconds", (times.last_s - times.first_s) / (times.num_tokens - 1))

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


class _Watched:
    """A runner whose work is noted."""

    def __init__(self, runner: StepRunner, journal: Journal) -> None:
        self._runner = runner
        self._journal = journal

    def run(self, decision: Decision) -> Sequence[Sampled]:
        begun_s = self._journal.computing(decision)
        try:
            return self._runner.run(decision)
        finally:
            self._journal.computed(begun_s)
