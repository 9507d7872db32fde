"""The input checks' verdicts again, by the checks that are in force now, on the request as it was logged."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from gateway.checks import MASK
from gateway.replay.finding import Finding, Verdict, compared
from orchestration.core import Call, Event, Handler, Kind, Request, compose
from orchestration.core.errors import LaminaError
from validators.input_checks import InputChecks
from validators.policy import Rule

INPUT = "input"


class ChecksReplay:
    """Run the input checks again; checks that run in a process of their own are left out, and said to be."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._names = {rule.check.name for rule in rules}

    async def finding(self, record: Mapping[str, Any]) -> Finding | None:
        """Compare verdicts and actions; None where no check looked at the call."""
        recorded = [said(note) for note in record["checks"] if note["stage"] == INPUT]
        if not recorded:
            return None
        unknown = sorted({check for check, _, _ in recorded} - self._names)
        if unknown:
            return Finding("input_checks", Verdict.UNKNOWN, recorded, note=f"not run here: {', '.join(unknown)}")
        request = (record["content"] or {}).get("request")
        if request is None or record["content"]["mode"] != "full" or MASK in str(request):
            return Finding("input_checks", Verdict.REDACTED, recorded, note="the request is not in the log as it came")
        handler = compose([InputChecks(without_callers(self._rules, record))], _nothing)
        recomputed = await said_again(call_of(record, request), handler, stage=INPUT)
        return compared("input_checks", recorded=recorded, recomputed=recomputed)


async def _nothing(_call: Call, /) -> AsyncGenerator[Event, None]:
    """Answer with no event: the checks are what is wanted."""
    return
    yield


def said(note: Mapping[str, Any]) -> tuple[str, str, str]:
    """Give what of a check's note must come out again."""
    return note["check"], note["verdict"], note["action"]


async def said_again(call: Call, handler: Handler, *, stage: str) -> list[tuple[str, str, str]]:
    """Send a call through checks, and give what those of a stage say of it."""
    try:
        async with aclosing(handler(call)) as events:
            async for _ in events:
                pass
    except LaminaError:
        pass  # what a block or an unavailable check says is in the notes
    return [(note.check, note.verdict, note.action) for note in call.notes.checks if note.stage == stage]


def call_of(record: Mapping[str, Any], fields: Mapping[str, Any]) -> Call:
    """Return the call of a record, as it came."""
    return Call(
        id=record["id"],
        request_id=record["request_id"],
        tenant=record["tenant"],
        request=Request(kind=Kind(record["kind"]), dialect=record["dialect"], fields=dict(fields)),
        received_at=record["received_at"],
        started=time.monotonic(),
    )


def without_callers(rules: Sequence[Rule], record: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules with those that stand for some keys taken for what the record says: they ran, or they did not.

    A key may be gone by now, or have another name.
    """
    ran = {note["check"] for note in record["checks"]}
    return tuple(
        replace(rule, scope=replace(rule.scope, keys=(), teams=())) if rule.scope.needs_caller else rule
        for rule in rules
        if not rule.scope.needs_caller or rule.check.name in ran
    )
