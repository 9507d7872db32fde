"""The input checks' verdicts again, by the checks that are in force now, on the request as it was logged."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gateway.checks import MASK
from gateway.replay.finding import Finding, Verdict, compared
from orchestration.core import Call, Event, Kind, Request
from orchestration.core.errors import LaminaError
from validators.input_checks import InputChecks
from validators.policy import Rule

INPUT = "input"


class ChecksReplay:
    """Run the input checks again; checks that run in a process of their own are left out, and said to be."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._layer = InputChecks(rules)
        self._names = {rule.check.name for rule in rules}

    async def finding(self, record: Mapping[str, Any]) -> Finding | None:
        """Compare verdicts and actions; None where no check looked at the call."""
        recorded = [_said(note) for note in record["checks"] if note["stage"] == INPUT]
        if not recorded:
            return None
        unknown = sorted({check for check, _, _ in recorded} - self._names)
        if unknown:
            return Finding("input_checks", Verdict.UNKNOWN, recorded, note=f"not run here: {', '.join(unknown)}")
        request = (record["content"] or {}).get("request")
        if request is None or record["content"]["mode"] != "full" or MASK in str(request):
            return Finding("input_checks", Verdict.REDACTED, recorded, note="the request is not in the log as it came")
        return compared("input_checks", recorded=recorded, recomputed=await self._again(record, request))

    async def _again(self, record: Mapping[str, Any], fields: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        request = Request(kind=Kind(record["kind"]), dialect=record["dialect"], fields=dict(fields))
        call = Call(
            id=record["id"],
            request_id=record["request_id"],
            tenant=record["tenant"],
            request=request,
            received_at=record["received_at"],
            started=time.monotonic(),
        )
        try:
            async with aclosing(self._layer(call, _nothing)) as events:
                async for _ in events:
                    pass
        except LaminaError:
            pass  # what a block or an unavailable check says is in the notes
        return [(note.check, note.verdict, note.action) for note in call.notes.checks if note.stage == INPUT]


async def _nothing(_call: Call, /) -> AsyncGenerator[Event, None]:
    """Answer with no event: the checks are what is wanted."""
    return
    yield


def _said(note: Mapping[str, Any]) -> tuple[str, str, str]:
    return note["check"], note["verdict"], note["action"]
