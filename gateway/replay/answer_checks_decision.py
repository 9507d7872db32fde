"""The output checks' verdicts again, on the answer as it was logged: as it came, where no check changed it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from gateway.checks import MASK
from gateway.replay.checks_decision import call_of, said, said_again, without_callers
from gateway.replay.finding import Finding, Verdict, compared
from orchestration.core import CacheStatus, Call, Delta, Event, Finish, Handler, Layer, Part, Start, compose
from validators.hit_checks import HIT, HitChecks
from validators.input_checks import InputChecks
from validators.output_checks import OutputChecks
from validators.policy import Rule
from validators.registry import READS_REQUEST

OUTPUT = "output"
_UNCHANGED = frozenset({"passed", "flagged"})
_TEXTS = {"reasoning": Part.REASONING, "refusal": Part.REFUSAL, "text": Part.TEXT}


class AnswerChecksReplay:
    """Run the output checks again, and those that look at a similar question's answer once more.

    What they rewrote, blocked or had asked for anew is not in the log as it came.
    """

    def __init__(self, inputs: Sequence[Rule], outputs: Sequence[Rule]) -> None:
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._names = {rule.check.name for rule in outputs}

    async def findings(self, record: Mapping[str, Any]) -> list[Finding]:
        """Compare verdicts and actions, stage by stage; nothing of a stage at which no check looked at the answer."""
        return [await self._finding(record, stage) for stage in (HIT, OUTPUT) if _notes(record, stage)]

    async def _finding(self, record: Mapping[str, Any], stage: str) -> Finding:
        part, notes = f"{stage}_checks", _notes(record, stage)
        recorded = [said(note) for note in notes]
        unknown = sorted({note["check"] for note in notes} - self._names)
        if unknown:
            return Finding(part, Verdict.UNKNOWN, recorded, note=f"not run here: {', '.join(unknown)}")
        content = record["content"] or {}
        request, answer = content.get("request"), content.get("answer")
        is_whole = content.get("mode") == "full" and not content.get("left_out")
        if request is None or not is_whole or record["outcome"] != "answered" or MASK in str((request, answer)):
            return Finding(part, Verdict.REDACTED, recorded, note="the answer is not in the log as it came")
        if any(note["action"] not in _UNCHANGED for note in notes):
            return Finding(part, Verdict.REDACTED, recorded, note="the log has the answer as the checks changed it")
        call = call_of(record, request)
        if stage == HIT:
            call.notes.cache.status = CacheStatus.SEMANTIC
        handler = compose(self._layers(record, stage), _telling(answer or []))
        return compared(part, recorded=recorded, recomputed=await said_again(call, handler, stage=stage))

    def _layers(self, record: Mapping[str, Any], stage: str) -> list[Layer]:
        inputs, outputs = (without_callers(rules, record) for rules in (self._inputs, self._outputs))
        if stage == HIT:
            return [InputChecks(inputs), HitChecks([rule for rule in outputs if rule.check.name in READS_REQUEST])]
        return [InputChecks(inputs), OutputChecks(outputs)]


def _notes(record: Mapping[str, Any], stage: str) -> list[Mapping[str, Any]]:
    return [note for note in record["checks"] if note["stage"] == stage]


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
