"""The layer that checks a similar question's answer against the question that was asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from orchestration.core import CacheNote, CacheStatus, Call, Event, Handler
from orchestration.core.errors import Blocked, CheckUnavailable
from validators.answer import Answer
from validators.check import Stage
from validators.output_checks import KINDS, MAX_HELD_CHARS
from validators.policy import Mode, OnFail, Rule, Tally
from validators.scope import CallerOf, nobody

HIT = "hit"
"""What notes of such checks name as their stage."""

REFUSED_HIT = "refused_hit"
"""The key of `Notes.extra` that names the entry whose answer was refused."""


class HitChecks:
    """Check answers from the semantic cache by rules that read the request, and ask the model where one refuses.

    Such an answer was checked, but against the question that it was given to. It stands outside the caches; exact
    hits and misses pass. What a rule refuses, or cannot check and fails closed, is asked for anew, past the caches;
    the record names the check, with the stage `hit`. Rules that only tell are left out.
    """

    def __init__(self, rules: Sequence[Rule], *, caller_of: CallerOf = nobody) -> None:
        acting = (rule for rule in rules if not rule.only_tells)
        self._rules = tuple(replace(rule, on_fail=OnFail.BLOCK, mode=Mode.HOLD) for rule in acting)
        self._caller_of = caller_of

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer with a hit that passes, or with what the model says."""
        rules = [rule for rule in self._rules if rule.stands_for(call, self._caller_of)] if call.kind in KINDS else []
        held: list[Event] | None = None
        async with aclosing(next(call)) as events:
            async for event in events:
                if held is None and (not rules or call.notes.cache.status is not CacheStatus.SEMANTIC):
                    yield event
                    continue
                held = [] if held is None else held
                held.append(event)
        if held is None:
            return
        if await _passes(call, rules, held):
            for event in held:
                yield event
            return
        async with aclosing(next(_past_caches(call))) as events:
            async for event in events:
                yield event


async def _passes(call: Call, rules: Sequence[Rule], held: Sequence[Event]) -> bool:
    tally = Tally(call, rules, Stage.OUTPUT, place=HIT)
    answer = Answer(rules, tally, max_held_chars=MAX_HELD_CHARS)
    try:
        for event in held:
            await answer.take(event)
    except (Blocked, CheckUnavailable):
        return False
    finally:
        tally.record()
    return True


def _past_caches(call: Call) -> Call:
    """Return the call as one that no cache may answer, and forget the hit, but for its entry."""
    notes = call.notes
    notes.extra[REFUSED_HIT] = notes.cache.entry
    notes.cache = CacheNote()
    return replace(call, controls=replace(call.controls, cache=replace(call.controls.cache, is_no_cache=True)))
