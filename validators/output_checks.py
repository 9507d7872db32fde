"""The layer that checks answers, inside the caches: only what was checked is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from orchestration.core import Call, Event, Finish, Handler, Kind
from validators.answer import Answer
from validators.check import Stage
from validators.policy import Rule, Tally

MAX_HELD_CHARS = 8_000_000
KINDS = frozenset({Kind.CHAT, Kind.COMPLETION})


class OutputChecks:
    """Check what the model says: its text, reasoning, refusal and tool arguments, for every choice.

    The same answer comes out however it is cut into events, and nothing that a rule blocks or rewrites ever goes
    out. An event goes out as it came (raw frames and all) or, where its text was rewritten, without raw frames and
    logprobs. Raises `Blocked`, and `CheckUnavailable` where a check that fails closed cannot run; both as errors
    with a status as long as no content has gone out.
    """

    def __init__(self, rules: Sequence[Rule], *, max_held_chars: int = MAX_HELD_CHARS) -> None:
        self._rules = tuple(rules)
        self._max_held_chars = max_held_chars

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer with what passes the checks."""
        rules = [rule for rule in self._rules if rule.check.applies(call.request)] if call.kind in KINDS else []
        tally = Tally(call, rules, Stage.OUTPUT)
        answer = Answer(rules, tally, max_held_chars=self._max_held_chars)
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    if not rules:
                        yield event
                        continue
                    ready = await answer.take(event)
                    if isinstance(event, Finish):
                        tally.record()  # before Finish goes out: the caches decide on it then
                    for out in ready:
                        yield out
        finally:
            tally.record()
