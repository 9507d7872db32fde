"""`lamina replay`: make recorded decisions again from the log alone, and show the first that comes out otherwise."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from cache.guard import load_guard
from cache.policies.scorer import load_model
from gateway.checks import plan_checks
from gateway.refusals import Refused
from gateway.replay import Finding, Replay, Tally, Verdict
from gateway.replay.answer_checks_decision import AnswerChecksReplay
from gateway.replay.cache_decision import CacheReplay, questions_in
from gateway.replay.checks_decision import ChecksReplay
from gateway.settings import Settings, load_settings, process_environment
from gateway.supervisor.plan import database_url
from gateway.supervisor.state import STATE_FOLDER, StateFolder
from logging_layer.history import HistoryUnreadable, read_history
from logging_layer.reader import CallReader
from validators.guardrails_client import GuardrailsClient
from validators.registry import CheckSpec, build_checks

_NEIGHBOURHOOD_S = 31 * 86_400.0


def replay_one(call_id: str, config: Path | None) -> int:
    """Show every decision of one call beside what it comes to now; returns 1 where one differs."""
    settings, place = load_settings(config, environment=process_environment()), StateFolder(STATE_FOLDER)
    url = database_url(settings, place)
    record = asyncio.run(_read(call_id, url, place))
    texts = _texts_around(record, url) if record["cache"]["partition"] else {}
    findings = asyncio.run(_replay(settings).of(record, questions=texts))
    console = Console(highlight=False)
    for finding in findings:
        console.print(_line(finding))
    if not findings:
        console.print("Nothing was decided that could be made again: no look-up, no choice, no check.")
    return int(any(finding.verdict is Verdict.DIFFERS for finding in findings))


def replay_all(since: float, config: Path | None) -> int:
    """Replay every call in SQL, sum up, and show the first difference; returns 1 where there is one.

    The log is read twice, once for the texts of the entries: no more than those and a page of records is held.
    """
    settings = load_settings(config, environment=process_environment())
    url, until = database_url(settings, StateFolder(STATE_FOLDER)), time.time()
    try:
        counted = _Counted(read_history(url, since=since, until=until))
        texts = questions_in(counted)
        if not counted.num_records:
            raise Refused("the log holds no call of that time: nothing can be replayed")
        records = read_history(url, since=since, until=until)
        tally = asyncio.run(_all(_replay(settings), records, texts=texts, total=counted.num_records))
    except HistoryUnreadable as exc:
        raise Refused(str(exc)) from exc
    console = Console(highlight=False)
    console.print(_summary(tally))
    if tally.first_difference is not None:
        call, finding = tally.first_difference
        console.print(f"The first that differs is call {call}:\n  {_line(finding)}")
    return int(tally.num_different > 0)


class _Counted:
    """Hand records on, and know afterwards how many there were."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self._records = records
        self.num_records = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for record in self._records:
            self.num_records += 1
            yield record


async def _all(replay: Replay, records: Iterable[dict[str, Any]], *, texts: Mapping[str, str], total: int) -> Tally:
    tally = Tally()
    for record in track(records, description="replaying", total=total, transient=True):
        tally.add(record["id"], await replay.of(record, questions=texts))
    return tally


def _replay(settings: Settings) -> Replay:
    plan = plan_checks(settings)
    nobody = GuardrailsClient(Path("guard.sock"))
    inputs = build_checks(_inside(plan.input), stage="input", worker=nobody)
    outputs = build_checks(_inside(plan.output), stage="output", worker=nobody)
    cache = CacheReplay(guard=load_guard(), model=load_model())
    return Replay(cache, ChecksReplay(inputs), AnswerChecksReplay(inputs, outputs))


def _inside(specs: Sequence[CheckSpec]) -> list[CheckSpec]:
    """Leave out the checks that run in a process of their own."""
    return [spec for spec in specs if not spec.check.startswith("guardrails/")]


def _texts_around(record: Mapping[str, Any], url: str) -> dict[str, str]:
    """Return the texts of the entries that a call could meet and that were asked for up to a month before it."""
    cache, at = record["cache"], record["received_at"]
    partitions = {cache["partition"], cache.get("asked_alone")} - {None}
    try:
        history = read_history(url, since=at - _NEIGHBOURHOOD_S, until=at)
        return questions_in(one for one in history if one["cache"]["partition"] in partitions)
    except HistoryUnreadable as exc:
        raise Refused(str(exc)) from exc


async def _read(call_id: str, url: str, place: StateFolder) -> dict[str, Any]:
    reader = CallReader(url, place.spool)
    try:
        record = await reader.get(call_id)
    finally:
        await reader.aclose()
    if record is None:
        raise Refused(f"no call {call_id} is in the log; ids are in x-lamina-call and begin with 01")
    return record


def _line(finding: Finding) -> str:
    marks = {Verdict.AGREES: "[green]agrees[/]", Verdict.DIFFERS: "[red]differs[/]"}
    mark = marks.get(finding.verdict, f"[yellow]{finding.verdict}[/]")
    said = json.dumps(finding.recorded, ensure_ascii=False)
    again = (
        "" if finding.verdict is not Verdict.DIFFERS else f" now {json.dumps(finding.recomputed, ensure_ascii=False)}"
    )
    return f"{finding.part}: {mark} {said.replace('[', chr(92) + '[')}{again.replace('[', chr(92) + '[')}" + (
        f" ({finding.note})" if finding.note else ""
    )


def _summary(tally: Tally) -> Table:
    table = Table(title=f"{tally.num_calls:,} calls replayed")
    for heading in ("decision", *Verdict):
        table.add_column(heading, justify="left" if heading == "decision" else "right")
    for part in sorted({part for part, _ in tally.counts}):
        table.add_row(part, *(f"{tally.counts[part, verdict]:,}" for verdict in Verdict))
    return table
