"""The layer that checks answers, inside the caches: only what was checked is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from orchestration.core import Call, Event, Finish, Handler, Kind
from validators.answer import Answer
from validators.check import Stage
from validators.policy import Rule, Tally
from validators.reask import Reask, Spending, asked_again
from validators.scope import CallerOf, nobody

MAX_HELD_CHARS = 8_000_000
KINDS = frozenset({Kind.CHAT, Kind.COMPLETION})


class OutputChecks:
    """Check what the model says: its text, reasoning, refusal and tool arguments, for every choice.

    The same answer comes out however it is cut into events, and nothing that a rule blocks or rewrites ever goes
    out. An event goes out as it came (raw frames and all) or, where its text was rewritten, without raw frames and
    logprobs. Raises `Blocked`, and `CheckUnavailable` where a check that fails closed cannot run; both as errors
    with a status as long as no content has gone out.
    """

    def __init__(
        self, rules: Sequence[Rule], *, caller_of: CallerOf = nobody, max_held_chars: int = MAX_HELD_CHARS
    ) -> None:
        self._rules = tuple(rules)
        self._caller_of = caller_of
        self._max_held_chars = max_held_chars

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer with what passes the checks, asking again where a rule says so: the answer is held until then."""
        rules = [rule for rule in self._rules if rule.stands_for(call, self._caller_of)] if call.kind in KINDS else []
        if not rules:
            async with aclosing(next(call)) as events:
                async for event in events:
                    yield event
            return
        tally, spending, asked = Tally(call, rules, Stage.OUTPUT), Spending(), call
        try:
            while True:
                answer = Answer(rules, tally, max_held_chars=self._max_held_chars)
                try:
                    async with aclosing(_checked(asked, next, answer, tally, spending)) as ready:
                        async for out in ready:
                            yield out
                    return
                except Reask as wanted:
                    tally.num_reasks += 1
                    asked = asked_again(asked, answer=answer.text(), reason=wanted.reason)
        finally:
            tally.record()
            spending.settle(call)


async def _checked(
    call: Call, next: Handler, answer: Answer, tally: Tally, spending: Spending
) -> AsyncGenerator[Event, None]:
    """Give what may go out of one answer; raises `Reask` at its end, before anything of it has gone out."""
    async with aclosing(next(call)) as events:
        async for event in events:
            try:
                ready = await answer.take(event)
            except Reask:
                assert isinstance(event, Finish), "an answer that may be asked for again is held to its end"
                spending.add(call, event)
                raise
            if isinstance(event, Finish):
                ready = [spending.with_usage(out) if isinstance(out, Finish) else out for out in ready]
                spending.settle(call)
                tally.record()  # before Finish goes out: the caches decide on it then
            for out in ready:
                yield out
