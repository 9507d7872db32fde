"""The output checks' verdicts again, on the answer as it was logged: as it came, where no check changed it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gateway.checks import MASK
from gateway.replay.checks_decision import call_of, said, without_callers
from gateway.replay.finding import Finding, Verdict, compared
from orchestration.core import Call, Delta, Event, Finish, Handler, Layer, Part, Start, compose
from orchestration.core.errors import LaminaError
from validators.input_checks import InputChecks
from validators.output_checks import OutputChecks
from validators.policy import Rule

PART = "output_checks"
OUTPUT = "output"
_UNCHANGED = frozenset({"passed", "flagged"})
_TEXTS = {"reasoning": Part.REASONING, "refusal": Part.REFUSAL, "text": Part.TEXT}


class AnswerChecksReplay:
    """Run the output checks again. What they rewrote, blocked or had asked for anew is not in the log as it came."""

    def __init__(self, inputs: Sequence[Rule], outputs: Sequence[Rule]) -> None:
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._names = {rule.check.name for rule in outputs}

    async def finding(self, record: Mapping[str, Any]) -> Finding | None:
        """Compare verdicts and actions; None where no check looked at the answer."""
        notes = [note for note in record["checks"] if note["stage"] == OUTPUT]
        if not notes:
            return None
        recorded = [said(note) for note in notes]
        unknown = sorted({note["check"] for note in notes} - self._names)
        if unknown:
            return Finding(PART, Verdict.UNKNOWN, recorded, note=f"not run here: {', '.join(unknown)}")
        content = record["content"] or {}
        request, answer = content.get("request"), content.get("answer")
        is_whole = content.get("mode") == "full" and not content.get("left_out")
        if request is None or not is_whole or record["outcome"] != "answered" or MASK in str((request, answer)):
            return Finding(PART, Verdict.REDACTED, recorded, note="the answer is not in the log as it came")
        if any(note["action"] not in _UNCHANGED for note in notes):
            return Finding(
                PART, Verdict.REDACTED, recorded, note="the checks changed the answer, which is not in the log"
            )
        return compared(PART, recorded=recorded, recomputed=await self._again(record, request, answer or []))

    async def _again(
        self, record: Mapping[str, Any], request: Mapping[str, Any], answer: Sequence[Mapping[str, Any]]
    ) -> list[tuple[str, str, str]]:
        call = call_of(record, request)
        inputs, outputs = (without_callers(rules, record) for rules in (self._inputs, self._outputs))
        layers: list[Layer] = [InputChecks(inputs), OutputChecks(outputs)]
        try:
            async with aclosing(compose(layers, _telling(answer))(call)) as events:
                async for _ in events:
                    pass
        except LaminaError:
            pass  # what a block or an unavailable check says is in the notes
        return [(note.check, note.verdict, note.action) for note in call.notes.checks if note.stage == OUTPUT]


def _telling(answer: Sequence[Mapping[str, Any]]) -> Handler:
    """Give a recorded answer again, each text in one piece."""

    async def tell(_call: Call, /) -> AsyncGenerator[Event, None]:
        yield Start("recorded", "recorded")
        for choice in answer:
            index = int(choice["index"])
            for name, part in _TEXTS.items():
                if choice.get(name):
                    yield Delta(choice=index, part=part, text=choice[name])
            for place, tool in enumerate(choice.get("tool_calls") or ()):
                data = {
                    "index": place,
                    "id": tool["id"],
                    "function": {"name": tool["name"], "arguments": tool["arguments"]},
                }
                yield Delta(choice=index, part=Part.TOOL_CALL, data=data)
        yield Finish({int(choice["index"]): "stop" for choice in answer} or {0: "stop"})

    return tell
