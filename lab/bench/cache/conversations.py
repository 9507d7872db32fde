"""Conversation traps: the same last words after two histories, through the cache's own partitions, guard and bar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from cache.context import MultiTurn, without_history
from cache.guard import Guard
from cache.partition import Question, question_of
from lab.bench.cache.embedding import Vector, Vectors
from lab.bench.cache.pairs import Share
from orchestration.core import Call, Kind, Request

BAR = 0.95
PARTS = ("dev", "held_out")

Messages = Sequence[Mapping[str, Any]]
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Twins:
    """Two conversations; `same_answer` tells whether the answer to one would be right for the other."""

    id: str
    subtype: str
    same_answer: bool
    a: Messages
    b: Messages

    @property
    def part(self) -> str:
        """Draw the part by the id's hash, before anything was made: the rules were made on `dev`."""
        return PARTS[int(hashlib.sha256(self.id.encode()).hexdigest(), 16) % 2]


def read_twins(path: Path) -> list[Twins]:
    """Read the shipped rows."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Twins(row["id"], row["subtype"], row["same_answer"], row["a"], row["b"]) for row in rows]


def measure_conversations(path: Path, vectors: Vectors, guard: Guard) -> list[Report]:
    """Count, for each mode and part, the conversations that get an answer which was given to their twin, or to their
    twin's last question asked alone.
    """
    twins = read_twins(path)
    known = vectors.of(messages[-1]["content"] for one in twins for messages in (one.a, one.b))
    return [
        {"mode": mode.value, "part": part, "subtype": subtype, **_counted(rows, mode, known, guard)}
        for mode in MultiTurn
        for part in PARTS
        for subtype, rows in _by_subtype(one for one in twins if one.part == part)
    ]


def table_of(rows: Sequence[Report]) -> Table:
    """Show the counts: of traps, what is served is wrong."""
    table = Table(title="Conversations that are served a twin's answer")
    for heading in ("mode", "part", "kind", "served", "wrong"):
        table.add_column(heading)
    for row in rows:
        served = f"{row['served']} of {row['total']}"
        table.add_row(row["mode"], row["part"], row["subtype"], *(("", served) if row["is_trap"] else (served, "")))
    return table


def _by_subtype(twins: Iterator[Twins]) -> list[tuple[str, list[Twins]]]:
    grouped: dict[str, list[Twins]] = {}
    for one in twins:
        grouped.setdefault(one.subtype, []).append(one)
    return sorted(grouped.items())


def _counted(twins: Sequence[Twins], mode: MultiTurn, known: Mapping[str, Vector], guard: Guard) -> Report:
    """Ask each conversation of each pair after its twin was answered, both as it stands and without its history."""
    served = sum(
        _is_served(asked, kept, mode, known, guard) for one in twins for asked, kept in ((one.a, one.b), (one.b, one.a))
    )
    share = Share(served, 2 * len(twins))
    is_trap = not twins[0].same_answer
    return {"is_trap": is_trap, "served": served, "total": share.total, "interval": list(share.interval)}


def _is_served(asked: Messages, kept: Messages, mode: MultiTurn, known: Mapping[str, Vector], guard: Guard) -> bool:
    question = _question(asked, mode)
    alone = without_history(kept)
    entries = [_question(kept, mode), *([_question(alone, mode)] if alone is not None else [])]
    is_met = any(entry.partition == question.searched for entry in entries)
    one, other = question.text, entries[0].text
    return is_met and float(known[one] @ known[other]) >= BAR and guard(one, other) is None


def _question(messages: Messages, mode: MultiTurn) -> Question:
    request = Request(Kind.CHAT, "openai.chat", {"model": "m", "messages": list(messages), "temperature": 0})
    call = Call("c", "c", "t", request, received_at=0.0, started=0.0)
    return question_of(call, route="route", policy="policy", multi_turn=mode)
