"""A runner without tensors that still knows where every token must lie, and small ways to build an engine."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from backends.engine.config import EngineConfig
from backends.engine.sched.decision import Decision, Row
from backends.engine.sched.scheduler import Scheduler
from backends.engine.types import Output, Sampled, SamplingParams, Submission

VOCAB_SIZE = 50
EOS = 49


def config(**changes: object) -> EngineConfig:
    """Return a small engine's settings."""
    base = EngineConfig(
        vocab_size=VOCAB_SIZE,
        max_len=64,
        eos_ids=frozenset({EOS}),
        num_pages=32,
        page_size=4,
        max_num_seqs=4,
        max_batched_tokens=16,
        prefill_share=1.0,
        chunk_share=1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def submission(
    prompt: Sequence[int], *, max_tokens: int = 4, salt: str = "", priority: int = 0, stop_ids: Sequence[int] = ()
) -> Submission:
    """Return a greedy request."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_ids=frozenset(stop_ids))
    return Submission(tuple(prompt), params, salt, priority)


def next_token(tokens: Sequence[int]) -> int:
    """Return what the fake model says after these tokens: never the end of the text."""
    return zlib.crc32(bytes(tokens)) % (VOCAB_SIZE - 1)


def answer(prompt: Sequence[int], count: int, *, stop_ids: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the fake model's answer."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tuple(tokens[len(prompt) :])


Memory = dict[tuple[int, int], tuple[str, int] | None]


class FakeRunner:
    """Remember which token was written where, and assert before every draw that all of a request is in its pages."""

    def __init__(self, *, page_size: int) -> None:
        self.decisions: list[Decision] = []
        self._page_size = page_size
        self._memory: Memory = {}
        self._swap: Memory = {}
        self._known: dict[int, tuple[str, list[int]]] = {}

    def expect(self, key: int, submitted: Submission) -> None:
        """Learn what a request is made of."""
        self._known[key] = (submitted.salt, list(submitted.prompt))

    def run(self, decision: Decision) -> list[Sampled]:
        """Move, then write, then look, as a forward pass does."""
        self.decisions.append(decision)
        for move in decision.saves:
            self._move(self._memory, self._swap, move.source, move.target, self._page_size)
        copied = [dict(self._memory) for _ in decision.copies[:1]]  # all are read before any is written
        for copy in decision.copies:
            assert 0 < copy.num_slots < self._page_size
            self._move(copied[0], self._memory, copy.source, copy.target, copy.num_slots)
        for move in decision.loads:
            self._move(self._swap, self._memory, move.source, move.target, self._page_size)
        for row in decision.rows:
            self._write(row)
        return [self._draw(row) for row in decision.rows if self._look(row) and row.draw is not None]

    def _move(self, source: Memory, target: Memory, begin: int, end: int, num_slots: int) -> None:
        for slot in range(self._page_size):
            target[end, slot] = source.get((begin, slot)) if slot < num_slots else None

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        return row.pages[position // self._page_size], position % self._page_size

    def _write(self, row: Row) -> None:
        salt, tokens = self._known[row.key]
        assert tuple(tokens[row.start : row.end]) == row.tokens
        for position in range(row.start, row.end):
            self._memory[self._place(row, position)] = (salt, tokens[position])

    def _look(self, row: Row) -> bool:
        salt, tokens = self._known[row.key]
        for position in range(row.end):
            assert self._memory[self._place(row, position)] == (salt, tokens[position])
        return True

    def _draw(self, row: Row) -> Sampled:
        _, tokens = self._known[row.key]
        assert row.end == len(tokens)
        assert row.draw is not None
        assert row.draw.position == row.end
        tokens.append(next_token(tokens))
        return Sampled(row.key, tokens[-1])


class Bench:
    """A scheduler with the fake runner and a clock that stands still, its books checked after every step.

    With `overlap` the next step is planned before one is computed, which is as late as a thread could get to it.
    """

    def __init__(self, settings: EngineConfig, *, overlap: bool = False) -> None:
        self._overlap = overlap
        self._flight: Decision | None = None
        self.now_s = 0.0
        self.scheduler = Scheduler(settings, clock=lambda: self.now_s)
        self.runner = FakeRunner(page_size=settings.page_size)
        self.outputs: dict[int, list[Output]] = {}
        self._num_submitted = 0

    def submit(self, submitted: Submission) -> int:
        """Submit; returns the key. Raises `Refused`."""
        key = self._num_submitted + 1
        self.scheduler.submit(key, submitted, seed=key)
        self._num_submitted = key
        self.runner.expect(key, submitted)
        self.outputs[key] = []
        return key

    def step(self) -> Decision:
        """Run one step; returns its decision."""
        decision = self._flight or self.scheduler.schedule()
        self.scheduler.check()
        plan = self.scheduler.schedule() if self._overlap else None
        self.scheduler.check()
        sampled = self.runner.run(decision) if not decision.is_empty else []
        if plan is not None:
            drawn = {result.key: result.token for result in sampled if result.token is not None}
            plan = plan.settle(drawn, without=self.scheduler.ends(sampled))
            self._flight = None if plan.is_empty else plan
        for output in self.scheduler.apply(decision, sampled):
            self.outputs[output.key].append(output)
        self.scheduler.check()
        return decision

    def admissions(self) -> list[int]:
        """Run until nothing is alive; returns the requests in the order in which they began."""
        first = len(self.runner.decisions)
        self.finish()
        rows = (row.key for decision in self.runner.decisions[first:] for row in decision.rows)
        return list(dict.fromkeys(rows))

    def finish(self, *, max_steps: int = 5000) -> None:
        """Run until nothing is alive; fails where a step changes nothing, but for one that lands for the aborted."""
        num_still = 0
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            before = self.scheduler.progress
            self.step()
            num_still = num_still + 1 if self.scheduler.progress == before else 0
            assert num_still <= self._overlap, "a step changed nothing"
        raise AssertionError(f"still alive after {max_steps} steps")

    def tokens(self, key: int) -> tuple[int, ...]:
        """Return all tokens that a request got."""
        return tuple(token for output in self.outputs[key] for token in output.tokens)

    @property
    def num_used(self) -> int:
        """Return how many pages are neither free nor evictable."""
        return self.scheduler.kv.pool.num_pages - self.scheduler.kv.num_available
