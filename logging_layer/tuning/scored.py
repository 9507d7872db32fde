"""What a sweep is made from: a row per request, its nearest neighbour's similarity and whether that one fitted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ScoredFault(ValueError):
    """A row cannot be used; the message names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One request of a stream.

    `similarity` is the cosine of its nearest neighbour that no guard vetoed, -1 where there is none. `is_correct` says
    whether that neighbour's answer would have been right, None where nobody knows. `p_correct` is what a scorer
    made of it. The rest shows the case to a person.
    """

    similarity: float
    is_correct: bool | None
    p_correct: float | None = None
    policy: str = "cosine"
    call: str | None = None
    question: str | None = None
    neighbour: str | None = None


def read_scored(path: Path) -> list[Scored]:
    """Read rows `{similarity, correct}` from a JSONL file; raises `ScoredFault` for the first that cannot be used.

    Optional fields: p_correct, policy, call, question, neighbour. `correct: null` is a request that nobody labelled.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            rows = list(_rows(lines, name=str(path)))
    except (OSError, UnicodeDecodeError) as exc:
        raise ScoredFault(f"{path} cannot be read: {exc}") from exc
    if not rows:
        raise ScoredFault(f"{path} has no rows; each line is an object such as {_EXAMPLE}")
    return rows


_EXAMPLE = '{"similarity": 0.97, "correct": true}'
_TEXTS = ("policy", "call", "question", "neighbour")


def _rows(lines: Iterable[str], *, name: str) -> Iterator[Scored]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise ScoredFault(
                f"{name} line {number} is no JSON ({exc}); expected an object such as {_EXAMPLE}"
            ) from exc
        try:
            yield scored_of(row)
        except ScoredFault as exc:
            raise ScoredFault(f"{name} line {number}: {exc}") from exc


def scored_of(row: Any) -> Scored:
    """Check one row; raises `ScoredFault` naming the field."""
    if not isinstance(row, dict):
        raise ScoredFault(f"expected an object such as {_EXAMPLE}")
    correct = row.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise ScoredFault(f"`correct` is true, false or null, not {correct!r}")
    texts = {key: row[key] for key in _TEXTS if row.get(key) is not None}
    wrong = next((key for key, value in texts.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise ScoredFault(f"`{wrong}` is a text, not {texts[wrong]!r}")
    p_correct = None if row.get("p_correct") is None else _number(row, "p_correct", least=0.0)
    return Scored(_number(row, "similarity", least=-1.0), correct, p_correct=p_correct, **texts)


def _number(row: dict[str, Any], key: str, *, least: float) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ScoredFault(f"`{key}` is a number from {least:g} to 1, not {value!r}")
    if not least - _ROUNDING <= value <= 1.0 + _ROUNDING:
        raise ScoredFault(f"`{key}` is a number from {least:g} to 1, not {value!r}")
    return float(value)


_ROUNDING = 1e-5  # float32 cosines of equal vectors come out a little above 1
