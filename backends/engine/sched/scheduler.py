"""The scheduler: which tokens of which requests run next, who waits, who gives way, and when a request ends."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from backends.engine.config import EngineConfig
from backends.engine.kv.cache import KvCache
from backends.engine.sched.decision import Decision, Draw, Row
from backends.engine.sched.gate import Gate
from backends.engine.sched.policy import rank, victim
from backends.engine.sched.request import Request
from backends.engine.types import FinishReason, Output, RefusalCode, Refused, Sampled, Submission, TokenLogprobs


@dataclass(slots=True)
class Counters:
    """What happened since the start; only ever grows."""

    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    finished: int = 0
    refused: int = 0
    steps: int = 0


class Scheduler:
    """Decide step after step: `schedule()`, compute the decision elsewhere, then `apply()` or `fail()` it.

    Decodes go first, then the rest of prompts already begun, then admissions, under one token budget. The oldest
    request of the highest priority never gives way, so something always finishes.
    """

    def __init__(self, config: EngineConfig, counters: Counters | None = None) -> None:
        self._config = config
        self.kv = KvCache(num_pages=config.num_pages, page_size=config.page_size, prefix_cache=config.prefix_cache)
        self.counters = counters or Counters()
        self._gate = Gate(config)
        self._running: dict[int, Request] = {}
        self._waiting: list[Request] = []

    @property
    def num_running(self) -> int:
        """Return how many requests hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return how many requests wait, new and preempted ones."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Tell whether any request is alive."""
        return bool(self._running or self._waiting)

    @property
    def progress(self) -> tuple[int, ...]:
        """Return a mark that every step changes unless something is wrong."""
        oldest = min(self._running.values(), key=rank, default=None)
        mark = (oldest.key, oldest.num_computed) if oldest else (0, 0)
        return (self.counters.generated_tokens, self.counters.finished, self.counters.aborted, *mark)

    def submit(self, key: int, submission: Submission, *, seed: int) -> None:
        """Queue a request; keys must grow. Raises `Refused` for one that could never run or finds the queue full."""
        try:
            self._gate.check(submission)
            if self.num_waiting >= self._config.max_waiting:
                raise Refused(RefusalCode.QUEUE_FULL, f"{self.num_waiting} requests wait already; ask again later")
        except Refused:
            self.counters.refused += 1
            raise
        self._enqueue(Request(key, submission, seed))

    def abort(self, key: int) -> bool:
        """End a request at once and free its pages; returns False where it has ended already."""
        request = self._find(key)
        if request is None:
            return False
        self._release(request)
        self.counters.aborted += 1
        return True

    def schedule(self) -> Decision:
        """Return what runs next; empty only where nothing is alive."""
        step = _Step(budget=self._config.max_batched_tokens)
        by_age = sorted(self._running.values(), key=rank)
        for is_decode in (True, False):
            for request in by_age:
                if request.holding is not None and (request.num_pending == 1) == is_decode:
                    self._continue(request, step)
        if not step.preempted:
            self._admit(step)
        self.counters.steps += bool(step.rows)
        return Decision(self.counters.steps, tuple(step.rows.values()), tuple(step.preempted))

    def apply(self, decision: Decision, sampled: Sequence[Sampled]) -> list[Output]:
        """Note what a computed decision gave; returns what each request got, the last output of each with its end."""
        outputs = self.fail([result.key for result in sampled if result.token is None])
        for row in decision.rows:
            request = self._running.get(row.key)
            if request is not None:
                self._advance(request, row)
        outputs.extend(self._take(result) for result in sampled if result.key in self._running)
        return outputs

    def fail(self, keys: Sequence[int]) -> list[Output]:
        """End these requests with an error; nothing of what their failed step wrote is kept."""
        outputs = []
        for key in keys:
            request = self._find(key)
            if request is not None:
                self._release(request, keep=False)
                self.counters.finished += 1
                outputs.append(self._output(request, (), None, FinishReason.ERROR))
        return outputs

    def fail_all(self) -> list[Output]:
        """Return the end with an error of every live request, without touching books that may be wrong."""
        live = [*self._running.values(), *self._waiting]
        self.counters.finished += len(live)
        return [self._output(request, (), None, FinishReason.ERROR) for request in live]

    def check(self) -> None:
        """Assert that pages, locks and requests agree; may be called between any two steps."""
        self.kv.check([request.holding for request in self._running.values() if request.holding is not None])
        assert all(request.holding is not None for request in self._running.values())
        assert all(request.holding is None for request in self._waiting)
        assert [rank(each) for each in self._waiting] == sorted(rank(each) for each in self._waiting)

    def _find(self, key: int) -> Request | None:
        return self._running.get(key) or next((each for each in self._waiting if each.key == key), None)

    def _enqueue(self, request: Request) -> None:
        bisect.insort(self._waiting, request, key=rank)

    def _continue(self, request: Request, step: _Step) -> None:
        """Give a running request its next row, taking pages from younger ones where they are short."""
        count = min(request.num_pending, step.budget)
        while count > 0 and request.holding is not None:
            if self.kv.grow(request.holding, request.num_computed + count):
                step.add(self._row(request, count))
                return
            self._preempt(victim(self._running.values()), step)

    def _preempt(self, request: Request, step: _Step) -> None:
        step.remove(request.key)
        self._release(request)
        self._enqueue(request)
        self.counters.preemptions += 1

    def _admit(self, step: _Step) -> None:
        """Start waiting requests in their order until one does not fit."""
        while self._waiting and step.budget > 0 and self.num_running < self._config.max_num_seqs:
            request = self._waiting[0]
            holding = self.kv.open(request.submission.salt, request.tokens)
            computed = len(holding.pages) * self._config.page_size
            count = min(len(request.tokens) - computed, step.budget)
            if not self._gate.admits(request, holding, self._running.values()) or not self.kv.grow(
                holding, computed + count
            ):
                self.kv.close(holding, request.tokens, num_computed=0)
                return
            self._waiting.pop(0)
            self._running[request.key] = request
            request.holding, request.num_computed = holding, computed
            self._count_admission(request)
            step.add(self._row(request, count))

    def _count_admission(self, request: Request) -> None:
        if request.cached_prompt_tokens is not None:
            return  # it comes back from a preemption
        request.cached_prompt_tokens = request.num_computed
        self.counters.prompt_tokens += len(request.submission.prompt)
        self.counters.prefix_query_tokens += len(request.submission.prompt)
        self.counters.prefix_hit_tokens += request.num_computed

    def _row(self, request: Request, count: int) -> Row:
        assert request.holding is not None
        start, end = request.num_computed, request.num_computed + count
        draw = Draw(request.params, request.seed, end) if end == len(request.tokens) else None
        pages = request.holding.pages[: self._config.pages_for(end)]
        return Row(request.key, start, tuple(request.tokens[start:end]), tuple(pages), draw)

    def _advance(self, request: Request, row: Row) -> None:
        """Note what was computed; pages of a prompt are shared from now on, those of an answer when it ends."""
        assert request.holding is not None
        request.num_computed = row.end
        if row.end <= len(request.submission.prompt):
            self.kv.publish(request.holding, request.tokens, row.end)

    def _take(self, result: Sampled) -> Output:
        request = self._running[result.key]
        assert result.token is not None
        finish = request.append(result.token, eos_ids=self._config.eos_ids)
        self.counters.generated_tokens += 1
        if finish is not None:
            self._gate.note_length(request.num_generated)
            self._release(request)
            self.counters.finished += 1
        return self._output(request, (result.token,), result.logprobs, finish)

    def _release(self, request: Request, *, keep: bool = True) -> None:
        """Take a request out and free what it holds; the one way out, for every reason, and safe to repeat.

        What it computed stays in the tree for others, unless `keep` is False.
        """
        if self._running.pop(request.key, None) is None and request in self._waiting:
            self._waiting.remove(request)
        if request.holding is not None:
            self.kv.close(request.holding, request.tokens, num_computed=request.num_computed if keep else 0)
        request.holding, request.num_computed = None, 0

    def _output(
        self, request: Request, tokens: tuple[int, ...], logprobs: TokenLogprobs | None, finish: FinishReason | None
    ) -> Output:
        cached = request.cached_prompt_tokens or 0
        return Output(request.key, tokens, (logprobs,) if logprobs else None, finish, cached)


class _Step:
    """The decision in the making: rows by request, what is left of the budget, and who gave way."""

    def __init__(self, *, budget: int) -> None:
        self.budget = budget
        self.rows: dict[int, Row] = {}
        self.preempted: list[int] = []

    def add(self, row: Row) -> None:
        """Put a row in."""
        self.rows[row.key] = row
        self.budget -= row.count

    def remove(self, key: int) -> None:
        """Note that a request gives way, and take its row out if it has one."""
        row = self.rows.pop(key, None)
        self.budget += row.count if row else 0
        self.preempted.append(key)
