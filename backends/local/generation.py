"""One call at the engine: its sequences, and what has come for them and was not yet read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from orchestration.core.errors import BackendError, BackendTimeout

TokenLogprobs = tuple[float, Sequence[tuple[int, float]]]
"""A token's own logprob, and the likeliest tokens at its place with theirs."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One sequence for the engine; `top_k` 0 is off, `logprobs` counts the alternatives wanted (None: no logprobs)."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    salt: str = ""
    priority: int = 0

    def as_message(self) -> dict[str, Any]:
        """Give the fields as the link sends them."""
        # `dataclasses.asdict` would copy the prompt id by id.
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(slots=True)
class Step:
    """Everything that was ready for the sequence `index`; `finish` is "stop", "length", "error" or None."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish: str | None = None
    cached_tokens: int = 0


class EngineRefused(Exception):
    """The engine refused a sequence; `code` is one of never_fits, queue_full, bad_params, engine_error."""

    def __init__(self, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class Generation:
    """Receive one call's sequences. One reader calls `take` until every sequence has its `finish`, then `close`.

    Unread ids are kept, at most each sequence's `max_tokens` of them. A reader that leaves them unread for longer
    than `stall_s` while more come loses the call: it is aborted and `take` raises `BackendTimeout`.
    """

    def __init__(
        self,
        limits: Sequence[int],
        *,
        abort: Callable[[int], None],
        now: Callable[[], float],
        stall_s: float,
    ) -> None:
        self._limits = limits
        self._abort = abort
        self._now = now
        self._stall_s = stall_s
        self._received = [0] * len(limits)
        self.events: list[Mapping[str, Any]] = [{} for _ in limits]
        """By sequence, when what happened to it in the engine, as far as the engine told."""
        self._live = set(range(len(limits)))
        self._pending: dict[int, Step] = {}
        self._pending_since = 0.0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> list[Step]:
        """Return what is ready, at most one step per sequence, waiting until there is something.

        Raises what ended the call early: `EngineRefused`, or an error of `orchestration.core.errors`.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        steps, self._pending = list(self._pending.values()), {}
        return steps

    def abort(self, index: int) -> None:
        """Tell the engine to stop this sequence; nothing more comes for it."""
        if index in self._live:
            self._live.discard(index)
            self._abort(index)
        self._pending.pop(index, None)

    def close(self) -> None:
        """Abort every sequence that has not finished. To be called once nobody reads any more."""
        for index in sorted(self._live):
            self.abort(index)

    def note(self, index: int, events: Mapping[str, Any]) -> None:
        """Take what the engine tells of a sequence's times; its newest word counts."""
        self.events[index] = events

    def push(self, index: int, row: Sequence[Any]) -> None:
        """Take one row of the engine's: token ids, logprobs or None, finish or None, cached prompt tokens."""
        if index not in self._live:
            return
        token_ids, logprobs, finish, cached_tokens = row
        now = self._now()
        if not self._pending:
            self._pending_since = now
        self._received[index] += len(token_ids)
        if self._received[index] > self._limits[index]:
            self.fail(BackendError(f"the engine sent more than the {self._limits[index]} tokens asked for"))
        elif now - self._pending_since > self._stall_s:
            self.fail(BackendTimeout(f"the answer was not read for {self._stall_s:g} s"))
        else:
            self._append(index, token_ids, logprobs, finish, cached_tokens)
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the call with an error, after what has come already; the engine is told to stop."""
        self._error = self._error or error
        self.close()
        self._wake()

    def lose(self, error: Exception) -> None:
        """End the call with an error: there is no engine to be told."""
        self._live.clear()
        self.fail(error)

    def _append(
        self, index: int, token_ids: list[int], logprobs: list[Any] | None, finish: str | None, cached_tokens: int
    ) -> None:
        step = self._pending.setdefault(index, Step(index))
        step.token_ids += token_ids
        step.cached_tokens = cached_tokens
        step.finish = finish
        if logprobs is not None:
            step.logprobs = [*(step.logprobs or ()), *logprobs]
        if finish is not None:
            self._live.discard(index)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
