"""A judge put to labelled pairs: how often it is right, and how often it takes a trap for the same question."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache.judge.opinion import Judge
from gateway.refusals import Refused
from logging_layer.judge_checks import JudgeCheck

SHIPPED = Path(__file__).parents[1] / "benchmarks" / "data" / "semcache" / "pairs.jsonl"
_NUM_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two questions, and whether one answer serves both."""

    a: str
    b: str
    same_answer: bool


def read_pairs(file: Path) -> list[LabelledPair]:
    """Read rows `{a, b, same_answer}`; raises `Refused` that names the line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise Refused(f"--pairs: cannot read {file}: {exc}") from exc
    return [_pair(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _pair(line: str, place: str) -> LabelledPair:
    try:
        row: Any = json.loads(line)
    except ValueError as exc:
        raise Refused(f"{place}: no JSON: {exc}") from exc
    match row:
        case {"a": str(a), "b": str(b), "same_answer": bool(same_answer)}:
            return LabelledPair(a, b, same_answer)
        case _:
            raise Refused(f'{place}: expected {{"a": text, "b": text, "same_answer": true or false}}')


async def examine(
    judge: Judge, rows: list[LabelledPair], *, model: str, told: Callable[[], None] = lambda: None
) -> JudgeCheck:
    """Put every pair to the judge, four at once; a pair without an opinion is one that it got wrong. `told` hears of
    each.
    """
    gate = asyncio.Semaphore(_NUM_AT_ONCE)

    async def opinion(pair: LabelledPair) -> bool | None:
        async with gate:
            said = (await judge.compare(pair.a, pair.b)).is_same
        told()
        return said

    said = await asyncio.gather(*map(opinion, rows))
    traps = [word for pair, word in zip(rows, said, strict=True) if not pair.same_answer]
    return JudgeCheck(
        fingerprint=judge.fingerprint,
        model=model,
        num_pairs=len(rows),
        num_right=sum(word is pair.same_answer for pair, word in zip(rows, said, strict=True)),
        num_traps=len(traps),
        num_fooled=sum(word is True for word in traps),
        num_failed=sum(word is None for word in said),
        checked_at=time.time(),
    )
