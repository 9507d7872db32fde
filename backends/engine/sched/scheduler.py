"""The scheduler: which tokens of which requests run next, who waits, who gives way, and when a request ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.engine.config import EngineConfig
from backends.engine.kv.cache import KvCache
from backends.engine.kv.radix import Match
from backends.engine.sched.decision import Copy, Decision, Draw, Row
from backends.engine.sched.forecast import Forecast
from backends.engine.sched.gate import Gate
from backends.engine.sched.lobby import Lobby
from backends.engine.sched.policy import rank, victim, yields_to
from backends.engine.sched.request import Request
from backends.engine.sched.step import Fetch, Step
from backends.engine.sched.swap import SwapSpace
from backends.engine.types import FinishReason, Output, Refused, Sampled, Submission, TokenLogprobs

_RETRY_STEPS = 8


@dataclass(slots=True)
class Counters:
    """What happened since the start; only ever grows."""

    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_copied_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    swapped_out_pages: int = 0
    swapped_in_pages: int = 0
    overtakes: int = 0
    aborted: int = 0
    finished: int = 0
    refused: int = 0
    steps: int = 0


class Scheduler:
    """Decide step after step: `schedule()`, compute the decision elsewhere, then `apply()` or `fail()` it.

    The next step may be scheduled before the last one is applied: where that one draws a token, the row after it holds
    `PENDING`. Decisions are computed one after another and applied in their order, and at most one is not applied yet
    when the next is scheduled.

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
        self._swap = SwapSpace(config.num_swap_pages, page_size=config.page_size)
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
    def _has_seat(self) -> bool:
        return len(self._running) < self._config.max_num_seqs

    @property
    def has_work(self) -> bool:
        """Tell whether any request is alive."""
        return bool(self._running or self._lobby)

    @property
    def progress(self) -> tuple[int, ...]:
        """Return a mark that every step changes unless something is wrong."""
        oldest = min(self._running.values(), key=rank, default=None)
        mark = (oldest.key, oldest.num_confirmed) if oldest else (0, 0)
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
        self._end(request)
        self.counters.aborted += 1
        return True

    def preempt(self, key: int) -> bool:
        """Take a running request's pages between two steps; it will go on where it was. False: it did not run."""
        request = self._running.get(key)
        if request is not None:
            self._preempt(request)
        return request is not None

    def schedule(self) -> Decision:
        """Return what runs next; empty only where nothing is alive, or all of it waits for the step in flight."""
        step = Step(self._config)
        chosen, others = self._take_turns()
        prompts = []
        for request in chosen:
            if request.num_pending > 1:
                prompts.append(request)
            else:
                self._continue(request, 1, step, is_prompt=False)
        step.limit_prompts()
        is_alone = len(prompts) + self.num_waiting == 1
        for request in prompts:
            self._continue(request, step.chunk(request.num_pending, is_alone=is_alone), step, is_prompt=True)
        if not step.preempted:
            self._admit(step)
        for request in others:
            if not step.is_full:
                is_prompt = request.num_pending > 1
                count = step.chunk(request.num_pending, is_alone=False)
                self._continue(request, count, step, is_prompt=is_prompt)
        return self._decide(step)

    def apply(self, decision: Decision, sampled: Sequence[Sampled]) -> list[Output]:
        """Note what a computed decision gave; returns what each request got, the last output of each with its end."""
        outputs = self.fail([result.key for result in sampled if result.token is None])
        drawn = {result.key: result for result in sampled}
        for row in decision.rows:
            request = self._find(row.key)
            if request is not None:
                self._land(request, row)
                if row.draw is not None:
                    outputs.append(self._take(request, drawn[row.key]))
        return outputs

    def has_any(self, decision: Decision) -> bool:
        """Tell whether any request of a decision is alive."""
        return any(self._find(row.key) is not None for row in decision.rows)

    def ends(self, sampled: Sequence[Sampled]) -> set[int]:
        """Return the requests that end with what was drawn, changing nothing: rows planned for them are in vain."""
        keys = set()
        for result in sampled:
            request = self._find(result.key)
            if request is None or result.token is None or self._end_of(request, result.token) is not None:
                keys.add(result.key)
        return keys

    def fail_step(self, decision: Decision) -> list[Output]:
        """End the requests of a step that raised; what it was to save of others is not relied on."""
        self._swap.lose(decision.saves)
        return self.fail([row.key for row in decision.rows])

    def fail(self, keys: Sequence[int]) -> list[Output]:
        """End these requests with an error; nothing of what their failed step wrote is kept."""
        outputs = []
        for key in keys:
            request = self._find(key)
            if request is not None:
                self._end(request, keep=False)
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
        assert all(0 <= each.num_confirmed <= each.num_computed <= len(each.tokens) for each in self._running.values())
        self._swap.check([request.key for request in self._lobby])
        self._lobby.check()

    def describe(self, *, max_requests: int = 16) -> str:
        """Return one line on the first few running and waiting requests each, without any token of theirs."""
        running, waiting = (
            " ".join(
                f"{each.key}:{each.num_confirmed}/{len(each.tokens)}+{each.num_allowed}"
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

    def _take_turns(self) -> tuple[Sequence[Request], Sequence[Request]]:
        """Return those that run in this step and those that do if there are rows left, each in order of rank.

        Only where more hold pages than a step has rows is there a choice: the first in rank always runs, then who has
        not run for longest, and one row is left to whoever waits for it.
        """
        by_age = sorted((each for each in self._running.values() if not each.is_ending), key=rank)
        limit = self._config.num_rows
        if limit == self._config.max_num_seqs:
            return by_age, ()
        may_admit = bool(self._lobby) and self._has_seat
        limit -= may_admit and limit > 1
        by_turn = by_age[:1] + sorted(by_age[1:], key=lambda request: request.last_step)
        return sorted(by_turn[:limit], key=rank), by_turn[limit:]

    def _decide(self, step: Step) -> Decision:
        """Make the decision, and note that it is in flight; saves wait for one that writes to pages."""
        self.counters.steps += bool(step.rows)
        decision = step.decide(self.counters.steps, self._swap.drain() if step.rows else ())
        for row in decision.rows:
            self._running[row.key].fly(row, step=decision.step)
        for key in step.fetches:
            self._swap.forget(key)  # what was kept of it is brought back by this decision
        self.counters.swapped_in_pages += len(decision.loads)
        self.counters.prefix_copied_tokens += sum(copy.num_slots for copy in decision.copies)
        return decision

    def _continue(self, request: Request, count: int, step: Step, *, is_prompt: bool) -> None:
        """Give a running request its next row, taking pages from others where they are short."""
        while count > 0 and request.holding is not None:
            if self.kv.grow(request.holding, request.num_computed + count):
                step.add(self._row(request, count), is_prompt=is_prompt)
                return
            self._give_way(victim(self._running.values()), step)

    def _give_way(self, request: Request, step: Step) -> None:
        started = step.remove(request.key)
        self._preempt(request, has_content=not started)

    def _preempt(self, request: Request, *, has_content: bool = True) -> None:
        """Let a request wait again; one that started in this very step has nothing in its pages yet that is its own."""
        assert request.holding is not None
        if has_content:
            self.counters.swapped_out_pages += self._swap.save(request.key, request.holding, request.num_computed)
        self._release(request)
        self._enqueue(request)
        self.counters.preemptions += 1

    def _admit(self, step: Step) -> None:
        """Start waiting requests as long as there is room for their tokens."""
        mark = (self._num_changes, self.counters.steps // _RETRY_STEPS)
        if mark == self._blocked:
            return  # nobody came or went since all were looked at in vain
        while self._lobby and step.prompt_room > 0 and not (step.is_full and self._has_seat):
            candidates = self._lobby.candidates(without=step.preempted)
            candidates = [request for request in candidates if request.num_flights == 0]
            if not self._admit_some(candidates, step) and not self._make_way(candidates, step):
                self._blocked = (self._num_changes, mark[1])
                return

    def _admit_some(self, candidates: Sequence[Request], step: Step) -> bool:
        """Start those that fit; tells whether any did."""
        if not self._has_seat:
            return False
        any_started = False
        forecast, num_nodes = self._gate.forecast(self._running.values()), self.kv.tree.num_nodes
        for request in self._lobby.prefer(candidates):
            if step.prompt_room <= 0 or step.is_full or not self._has_seat:
                break
            if self.kv.tree.num_nodes != num_nodes:  # a node was split; whose pages are whose is counted again
                forecast, num_nodes = self._gate.forecast(self._running.values()), self.kv.tree.num_nodes
            if self._lobby.may_pass(request, candidates) and self._start(request, candidates, forecast, step):
                any_started = True
        return any_started

    def _start(self, request: Request, candidates: Sequence[Request], forecast: Forecast, step: Step) -> bool:
        """Let a waiting request run if it fits."""
        match = self.kv.peek(request.submission.salt, request.tokens)
        shared = match.num_pages * self._config.page_size
        saved = self._swap.num_tokens(request.key, match)
        computed = max(shared + match.num_forked, saved)
        is_alone = self.num_running == 0 and self.num_waiting == 1
        count = step.chunk(len(request.tokens) - computed, is_alone=is_alone)
        if not forecast.admits(request, match) or not self.kv.fits(match, computed + count):
            return False
        forecast.add(request, match)
        self.counters.overtakes += self._lobby.admit(request, candidates=candidates)
        request.holding = self.kv.open(request.submission.salt, request.tokens)
        request.num_computed, request.num_confirmed = computed, shared
        assert self.kv.grow(request.holding, computed + count)
        self._running[request.key] = request
        self._count_admission(request)
        step.add(self._row(request, count), is_prompt=True)
        step.fetches[request.key] = self._fetch(request, match, is_saved=0 < saved == computed)
        return True

    def _fetch(self, request: Request, match: Match, *, is_saved: bool) -> Fetch:
        """Return what a request that starts needs in its own pages: what was kept of it, or a fork's first tokens."""
        assert request.holding is not None
        if is_saved:
            loads = self._swap.loads(request.key, request.holding.pages, num_matched=match.num_pages)
            return Fetch(loads=loads)
        if match.num_forked:
            copy = Copy(match.fork_page, request.holding.pages[match.num_pages], match.num_forked)
            return Fetch(copies=(copy,))
        return Fetch()

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
        draw = Draw(request.submission.params, request.seed, end) if end == len(request.tokens) else None
        pages = tuple(request.holding.pages)  # `grow` made them as many as these tokens need
        return Row(request.key, start, tuple(request.tokens[start:end]), pages, draw)

    def _land(self, request: Request, row: Row) -> None:
        """Note what was computed; pages of a prompt are shared from now on, those of an answer when it ends."""
        request.num_flights -= 1
        if request.holding is None:  # it gave way after this was decided
            self._num_changes += 1
            return
        end = request.num_confirmed = row.start + len(row.tokens)
        if end <= len(request.submission.prompt):
            self.kv.publish(request.holding, request.tokens, end)

    def _end_of(self, request: Request, token: int) -> FinishReason | None:
        return request.end_of(token, eos_ids=self._config.eos_ids)

    def _take(self, request: Request, result: Sampled) -> Output:
        """Give a request its drawn token, also where it gave way after that was decided."""
        assert result.token is not None
        finish = self._end_of(request, result.token)
        request.settle(result.token, is_last=finish is not None)
        self.counters.generated_tokens += 1
        self._lobby.charge(request.submission.salt, 1)
        if finish is not None:
            self._gate.note_length(request.num_generated)
            self._end(request)
            self.counters.finished += 1
        return self._output(request, (result.token,), result.logprobs, finish)

    def _end(self, request: Request, *, keep: bool = True) -> None:
        """Free all that a request has, here and in the swap space."""
        self._release(request, keep=keep)
        self._swap.forget(request.key)

    def _release(self, request: Request, *, keep: bool = True) -> None:
        """Take a request out and free what it holds; the one way out, for every reason, and safe to repeat.

        What it computed stays in the tree for others, unless `keep` is False. What a step in flight still writes to
        its pages does no harm: whoever gets them writes in a later one.
        """
        self._num_changes += 1
        self._running.pop(request.key, None)
        self._lobby.remove(request)
        if request.holding is not None:
            self.kv.close(request.holding, request.tokens, num_computed=request.num_confirmed if keep else 0)
        request.holding, request.num_computed, request.num_confirmed = None, 0, 0

    def _output(
        self, request: Request, tokens: tuple[int, ...], logprobs: TokenLogprobs | None, finish: FinishReason | None
    ) -> Output:
        cached = request.cached_prompt_tokens or 0
        return Output(request.key, tokens, (logprobs,) if logprobs else None, finish, cached)
