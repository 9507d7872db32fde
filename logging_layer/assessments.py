"""What people and judges say in MLflow about our traces, as labels, and labels as what MLflow shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from logging_layer.labels import Label, LabelSource

NAMES = ("correct", "correctness")
"""The feedback that is a label: the first is the one that we write, the second MLflow's own judge's."""
OURS = "lamina.label"
"""The metadata's key by which an assessment of ours is known."""
MAX_NOTE_CHARS = 2000
_SOURCES = {"HUMAN": LabelSource.HUMAN, "LLM_JUDGE": LabelSource.JUDGE, "AI_JUDGE": LabelSource.JUDGE}
_TYPES = {LabelSource.HUMAN: "HUMAN", LabelSource.JUDGE: "LLM_JUDGE"}
_WORDS = {"yes": True, "true": True, "correct": True, "no": False, "false": False, "incorrect": False}


@dataclass(frozen=True, slots=True)
class Assessment:
    """One judgement on a trace of ours; `updated_at` is Unix time in seconds, by MLflow's clock."""

    id: str
    call: str
    source: LabelSource
    is_correct: bool
    said_by: str
    rationale: str
    updated_at: float
    is_ours: bool

    @property
    def note(self) -> str:
        """Say where the label comes from, and why it was given."""
        said = f"MLflow, {self.said_by}" if self.said_by else "MLflow"
        return (f"{said}: {self.rationale}" if self.rationale else said)[:MAX_NOTE_CHARS]


def newest_of(trace: Mapping[str, Any]) -> dict[LabelSource, Assessment]:
    """Return the last word of each source on a trace, of those that are still valid and that say right or wrong."""
    newest: dict[LabelSource, Assessment] = {}
    for one in sorted(_assessments(trace), key=lambda each: each.updated_at):
        newest[one.source] = one
    return newest


def shown(label: Label) -> dict[str, Any]:
    """Write a label as MLflow's REST interface takes an assessment; a shadow call's has no place there."""
    return {
        "assessment_name": NAMES[0],
        "source": {"source_type": _TYPES[label.source], "source_id": "lamina"},
        "feedback": {"value": label.is_correct},
        "rationale": label.note or "",
        "metadata": {OURS: label.source.value},
    }


def can_be_shown(label: Label) -> bool:
    """Tell whether a label is somebody's word, and no shadow call's."""
    return label.source in _TYPES and label.is_correct is not None


def _assessments(trace: Mapping[str, Any]) -> Iterator[Assessment]:
    call = trace.get("tags", {}).get("lamina.call")
    for one in trace.get("assessments", ()) if call else ():
        source = _SOURCES.get(one.get("source", {}).get("source_type"))
        is_correct = _verdict(one.get("feedback", {}).get("value"))
        if one.get("assessment_name") in NAMES and one.get("valid", True) and source and is_correct is not None:
            yield Assessment(
                id=one["assessment_id"],
                call=call,
                source=source,
                is_correct=is_correct,
                said_by=one["source"].get("source_id", ""),
                rationale=one.get("rationale", ""),
                updated_at=datetime.fromisoformat(one["last_update_time"]).timestamp(),
                is_ours=OURS in one.get("metadata", {}),
            )


def _verdict(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
