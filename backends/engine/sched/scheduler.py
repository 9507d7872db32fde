"""The scheduler: which tokens of which requests run next, who waits, who gives way, and when a request ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.engine.config import EngineConfig
from backends.engine.kv.cache import KvCache
from backends.engine.sched.decision import Decision, Draw, Row
from backends.engine.sched.forecast import Forecast
from backends.engine.sched.gate import Gate
from backends.engine.sched.lobby import Lobby
from backends.engine.sched.policy import rank, victim, yields_to
from backends.engine.sched.request import Request
from backends.engine.sched.step import Step
from backends.engine.types import FinishReason, Output, Refused, Sampled, Submission, TokenLogprobs

_RETRY_STEPS = 8


@dataclass(slots=True)
class Counters:
    """What happened since the start; only ever grows."""

    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    overtakes: int = 0
    aborted: int = 0
    finished: int = 0
    refused: int = 0
    steps: int = 0


class Scheduler:
    """Decide step after step: `schedule()`, compute the decision elsewhere, then `apply()` or `fail()` it.

    Decodes go first, then the rest of prompts already begun, then admissions, under one token budget. The first in
    rank of those running never gives way, so something always finishes. A candidate that does not fit lets others
    pass, but only so often. A step costs as much as it has rows, however many requests wait.
    """

    def __init__(
        self, config: EngineConfig, counters: Counters | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self.kv = KvCache(num_pages=config.num_pages, page_size=config.page_size, prefix_cache=config.prefix_cache)
        self.counters = counters or Counters()
        self._clock = clock
        self._gate = Gate(config)
        self._lobby = Lobby(config, cached_length=self._cached_length, clock=clock)
        self._running: dict[int, Request] = {}
        self._num_changes = 0
        self._blocked: tuple[int, int] | None = None

    @property
    def num_running(self) -> int:
        """Return how many requests hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return how many requests wait, new and preempted ones."""
        return len(self._lobby)

    @property
    def num_waiting_tokens(self) -> int:
        """Return how many tokens those that wait have in all."""
        return self._lobby.num_tokens

    @property
    def has_work(self) -> bool:
        """Tell whether any request is alive."""
        return bool(self._running or self._lobby)

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
            self._lobby.check_room(len(submission.prompt))
        except Refused:
            self.counters.refused += 1
            raise
        place_s = self._clock() - submission.priority * self._config.priority_age_s
        self._enqueue(Request(key, submission, seed, place_s))

    def abort(self, key: int) -> bool:
        """End a request at once and free its pages; returns False where it has ended already."""
        request = self._find(key)
        if request is None:
            return False
        self._release(request)
        self.counters.aborted += 1
        return True

    def preempt(self, key: int) -> bool:
        """Take a running request's pages between two steps; it will go on where it was. False: it did not run."""
        request = self._running.get(key)
        if request is not None:
            self._preempt(request)
        return request is not None

    def schedule(self) -> Decision:
        """Return what runs next; empty only where nothing is alive."""
        step = Step(self._config)
        by_age = sorted(self._running.values(), key=rank)
        prompts = [request for request in by_age if request.num_pending > 1]
        for request in by_age:
            if request.num_pending == 1:
                self._continue(request, 1, step)
        step.limit_prompts()
        is_alone = len(prompts) + self.num_waiting == 1
        for request in prompts:
            self._continue(request, step.chunk(request.num_pending, is_alone=is_alone), step)
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
        live = [*self._running.values(), *self._lobby]
        self.counters.finished += len(live)
        return [self._output(request, (), None, FinishReason.ERROR) for request in live]

    def check(self) -> None:
        """Assert that pages, locks and requests agree; may be called between any two steps."""
        self.kv.check([request.holding for request in self._running.values() if request.holding is not None])
        assert all(request.holding is not None for request in self._running.values())
        self._lobby.check()

    def describe(self, *, max_requests: int = 16) -> str:
        """Return one line on the first few running and waiting requests each, without any token of theirs."""
        running, waiting = (
            " ".join(
                f"{each.key}:{each.num_computed}/{len(each.tokens)}+{each.num_allowed}"
                for each in list(requests)[:max_requests]
            )
            for requests in (self._running.values(), self._lobby)
        )
        return (
            f"running={self.num_running} [{running}] waiting={self.num_waiting} [{waiting}] "
            f"free={self.kv.pool.num_free} evictable={self.kv.tree.num_evictable} of={self.kv.pool.num_pages}"
        )

    def _find(self, key: int) -> Request | None:
        return self._running.get(key) or self._lobby.find(key)

    def _enqueue(self, request: Request) -> None:
        self._lobby.add(request)
        self._num_changes += 1

    def _cached_length(self, request: Request) -> int:
        return self.kv.peek(request.submission.salt, request.tokens).num_pages * self._config.page_size

    def _continue(self, request: Request, count: int, step: Step) -> None:
        """Give a running request its next row, taking pages from others where they are short."""
        is_prompt = request.num_pending > 1
        while count > 0 and request.holding is not None:
            if self.kv.grow(request.holding, request.num_computed + count):
                step.add(self._row(request, count), is_prompt=is_prompt)
                return
            self._give_way(victim(self._running.values()), step)

    def _give_way(self, request: Request, step: Step) -> None:
        step.remove(request.key)
        self._preempt(request)

    def _preempt(self, request: Request) -> None:
        self._release(request)
        self._enqueue(request)
        self.counters.preemptions += 1

    def _admit(self, step: Step) -> None:
        """Start waiting requests as long as there is room for their tokens."""
        mark = (self._num_changes, self.counters.steps // _RETRY_STEPS)
        if mark == self._blocked:
            return  # nobody came or went since all were looked at in vain
        while self._lobby and step.prompt_room > 0:
            candidates = self._lobby.candidates(without=step.preempted)
            if not self._admit_some(candidates, step) and not self._make_way(candidates, step):
                self._blocked = (self._num_changes, mark[1])
                return

    def _admit_some(self, candidates: Sequence[Request], step: Step) -> bool:
        """Start those that fit; tells whether any did."""
        if self.num_running >= self._config.max_num_seqs:
            return False
        any_started = False
        forecast, num_nodes = self._gate.forecast(self._running.values()), self.kv.tree.num_nodes
        for request in self._lobby.prefer(candidates):
            if step.prompt_room <= 0 or self.num_running >= self._config.max_num_seqs:
                break
            if self.kv.tree.num_nodes != num_nodes:  # a node was split; whose pages are whose is counted again
                forecast, num_nodes = self._gate.forecast(self._running.values()), self.kv.tree.num_nodes
            if self._lobby.may_pass(request, candidates) and self._start(request, candidates, forecast, step):
                any_started = True
        return any_started

    def _start(self, request: Request, candidates: Sequence[Request], forecast: Forecast, step: Step) -> bool:
        """Let a waiting request run if it fits."""
        match = self.kv.peek(request.submission.salt, request.tokens)
        computed = match.num_pages * self._config.page_size
        is_alone = self.num_running == 0 and self.num_waiting == 1
        count = step.chunk(len(request.tokens) - computed, is_alone=is_alone)
        if not forecast.admits(request, match) or not self.kv.fits(match, computed + count):
            return False
        forecast.add(request, match)
        self.counters.overtakes += self._lobby.admit(request, candidates=candidates)
        request.holding = self.kv.open(request.submission.salt, request.tokens)
        request.num_computed = computed
        assert self.kv.grow(request.holding, computed + count)
        self._running[request.key] = request
        self._count_admission(request)
        step.add(self._row(request, count), is_prompt=True)
        return True

    def _make_way(self, candidates: Sequence[Request], step: Step) -> bool:
        """Let one running request give way to the first candidate, if it has a higher priority and that can help."""
        if not candidates or self._config.admission == "reserve":
            return False  # where all is reserved nothing is ever preempted
        head, within_tenant = candidates[0], self._config.policy == "fair_share"
        lower = [each for each in self._running.values() if yields_to(each, head, within_tenant=within_tenant)]
        if not lower:
            return False
        keys = {each.key for each in lower}
        others = self._gate.forecast(each for key, each in self._running.items() if key not in keys)
        if not others.admits(head, self.kv.peek(head.submission.salt, head.tokens)):
            return False
        self._give_way(victim(lower), step)
        return True

    def _count_admission(self, request: Request) -> None:
        if request.cached_prompt_tokens is not None:
            return  # it comes back from a preemption
        request.cached_prompt_tokens = request.num_computed
        self.counters.prompt_tokens += len(request.submission.prompt)
        self.counters.prefix_query_tokens += len(request.submission.prompt)
        self.counters.prefix_hit_tokens += request.num_computed
        self._lobby.charge(request.submission.salt, len(request.tokens) - request.num_computed)

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
        self._lobby.charge(request.submission.salt, 1)
        if finish is not None:
            self._gate.note_length(request.num_generated)
            self._release(request)
            self.counters.finished += 1
        return self._output(request, (result.token,), result.logprobs, finish)

    def _release(self, request: Request, *, keep: bool = True) -> None:
        """Take a request out and free what it holds; the one way out, for every reason, and safe to repeat.

        What it computed stays in the tree for others, unless `keep` is False.
        """
        self._num_changes += 1
        self._running.pop(request.key, None)
        self._lobby.remove(request)
        if request.holding is not None:
            self.kv.close(request.holding, request.tokens, num_computed=request.num_computed if keep else 0)
        request.holding, request.num_computed = None, 0

    def _output(
        self, request: Request, tokens: tuple[int, ...], logprobs: TokenLogprobs | None, finish: FinishReason | None
    ) -> Output:
        cached = request.cached_prompt_tokens or 0
        return Output(request.key, tokens, (logprobs,) if logprobs else None, finish, cached)
