"""`lamina tune`: sweep the semantic cache's bar over labelled requests; say what each bar would have been worth."""

from __future__ import annotations

import asyncio
import getpass
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.refusals import Refused
from gateway.settings import load_settings, process_environment
from gateway.supervisor.plan import database_url
from gateway.supervisor.state import STATE_FOLDER, StateFolder
from logging_layer.policies import AppliedPolicy, PoliciesDown, PolicyHistory
from logging_layer.tuning import Prices, Scored, ScoredFault, read_scored
from logging_layer.tuning.live import LogUnreadable, read_live
from logging_layer.tuning.page import page_of
from logging_layer.tuning.report import Report, report_on
from logging_layer.tuning.study import StudyFailed, StudyWriter
from logging_layer.tuning.sweep import Point

NUM_STEPS = 500  # bars from 0.5 to 1, a thousandth apart
_MAX_REASON_CHARS = 500


def prices_of(call_usd: float, wrong_usd: float) -> Prices:
    """Check the prices; raises `Refused`."""
    try:
        return Prices(call_usd=call_usd, wrong_usd=wrong_usd)
    except ValueError as exc:
        raise Refused(f"{exc}: see --cost-call and --cost-wrong") from exc


def bars_of(text: str | None) -> list[float]:
    """Read bars parted by commas, sorted; every thousandth from 0.5 to 1 by default. Raises `Refused`."""
    if text is None:
        return [0.5 + step / 1000 for step in range(NUM_STEPS + 1)]
    try:
        bars = sorted({float(part) for part in text.split(",")})
    except ValueError as exc:
        raise Refused(f"--thresholds {text}: expected cosines parted by commas, as in 0.9,0.95,0.99") from exc
    if not all(-1.0 <= bar <= 1.0 for bar in bars):
        raise Refused(f"--thresholds {text}: a cosine is between -1 and 1")
    return bars


def rows_of(scored: Path) -> list[Scored]:
    """Read a file of scored requests; raises `Refused`."""
    try:
        return read_scored(scored)
    except ScoredFault as exc:
        raise Refused(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What was asked for on the command line."""

    scored: Path | None
    prices: Prices
    bars: Sequence[float]
    has_mlflow: bool
    mlflow_uri: str | None
    page_path: Path | None
    json_path: Path | None
    applies: bool
    reason: str | None
    config: Path | None


def run(request: TuneRequest) -> None:
    """Sweep, show the table, write what was asked for; raises `Refused` where a file or MLflow does not take it."""
    rows, dataset = _rows(request)
    report = report_on(rows, dataset=dataset, thresholds=request.bars, prices=request.prices)
    console = Console()
    console.print(table_of(report))
    console.print(verdict_of(report))
    if request.json_path is not None:
        _write("--json", request.json_path, json.dumps(report.to_json(), indent=1) + "\n")
    if request.page_path is not None:
        _write("--page", request.page_path, page_of(report))
        console.print(f"Page: {request.page_path}")
    uri = _mlflow_uri(request)
    study = asyncio.run(_study(report, uri, request.config)) if uri is not None else None
    if study is not None:
        console.print(f"Study: {study}", soft_wrap=True)
    if request.applies:
        console.print(_apply(report, request, study), soft_wrap=True)


def watch(request: TuneRequest, *, every_s: float) -> None:
    """Sweep again and again until Ctrl-C; a study is written, and a bar applied, when the recommendation changes."""
    if request.scored is not None:
        raise Refused("--watch follows the live log; leave out --scored")
    last: float | None = -2.0
    while True:
        rows, dataset = _rows(request)
        report = report_on(rows, dataset=dataset, thresholds=request.bars, prices=request.prices)
        best = report.recommended.threshold if report.recommended else None
        is_new = best != last
        run(request if is_new else replace(request, has_mlflow=False, applies=False))
        last = best
        time.sleep(every_s)


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise Refused(f"{option} {path} cannot be written: {exc.strerror or exc}") from exc


def _apply(report: Report, request: TuneRequest, study: str | None) -> str:
    """Put the recommended bar in force; raises `Refused` where there is none, or nowhere to write it."""
    if report.recommended is None:
        raise Refused("--apply: no bar is recommended, so none is put in force")
    settings = load_settings(request.config, environment=process_environment())
    reason = request.reason or f"lamina tune on {report.dataset}, {report.num_labelled} labels" + (
        f": {study}" if study else ""
    )
    applied = asyncio.run(
        _applied(database_url(settings, StateFolder(STATE_FOLDER)), report.recommended, report.prices, reason)
    )
    return f"Applied bar {applied.threshold:g} as version {applied.version}, by {applied.applied_by}: {applied.reason}"


async def _applied(url: str, best: Point, prices: Prices, reason: str) -> AppliedPolicy:
    history = PolicyHistory(url)
    try:
        return await history.apply(
            policy="static",
            threshold=best.threshold,
            wrong_to_call_cost=prices.wrong_usd / prices.call_usd,
            applied_by=getpass.getuser(),
            reason=reason[:_MAX_REASON_CHARS],
            now=time.time(),
        )
    except PoliciesDown as exc:
        raise Refused(f"--apply: {exc}") from exc
    finally:
        await history.aclose()


def _rows(request: TuneRequest) -> tuple[Sequence[Scored], str]:
    if request.scored is not None:
        return rows_of(request.scored), request.scored.stem
    settings = load_settings(request.config, environment=process_environment())
    try:
        rows = read_live(database_url(settings, StateFolder(STATE_FOLDER)))
    except LogUnreadable as exc:
        raise Refused(str(exc)) from exc
    if not rows:
        raise Refused("the log holds no semantic look-up yet: send some requests, or name a file with --scored")
    return rows, "live"


def _mlflow_uri(request: TuneRequest) -> str | None:
    """Return where the study goes: to the server that was named, or the one that this installation runs."""
    if not request.has_mlflow:
        return None
    if request.mlflow_uri is not None:
        return request.mlflow_uri
    settings, place = load_settings(request.config, environment=process_environment()), StateFolder(STATE_FOLDER)
    served = place.read_status().get("mlflow") if place.is_held() else None
    uri = settings.mlflow.uri or served
    if uri is None:
        raise Refused(
            "no MLflow is known: `lamina serve --mlflow` starts one, mlflow.uri or --mlflow-uri names one, "
            "--no-mlflow does without"
        )
    return str(uri)


def table_of(report: Report) -> Table:
    """Lay out some bars around the recommended one, all of them where there are few."""
    table = Table(title=f"{report.dataset}, per 1,000 requests ({report.num_labelled:,} labelled)")
    for heading in ("threshold", "hits", "wrong", "at most", "saved $", "lost $", "value $", "sure $"):
        table.add_column(heading, justify="right")
    for point in _shown(report):
        is_best = report.recommended is not None and point.threshold == report.recommended.threshold
        table.add_row(*_cells(point), style="bold green" if is_best else None)
    return table


def verdict_of(report: Report) -> str:
    """Say in one line which bar is recommended, and why."""
    prices, best = report.prices, report.recommended
    rule = f"at ${prices.call_usd:g} a call and ${prices.wrong_usd:g} a wrong answer"
    if best is None:
        return f"No bar is sure to be worth its mistakes {rule}: serve nothing, label more, or lower the price."
    return f"Recommended bar {best.threshold:g} {rule}: worth ${best.value_usd:.2f} per 1,000 requests."


def _shown(report: Report) -> list[Point]:
    points = list(report.points)
    if len(points) <= 20:
        return points
    marks = {0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0}
    if report.recommended:
        marks.add(round(report.recommended.threshold, 3))
    return [point for point in points if round(point.threshold, 3) in marks]


def _cells(point: Point) -> tuple[str, ...]:
    at_most = 1000 * point.wrong_per_request.high
    dollars = (point.saved_usd, point.lost_usd, point.value_usd, point.value_low_usd)
    return (
        f"{point.threshold:g}",
        f"{point.hits:.1f}",
        f"{point.wrong:.1f}",
        f"{at_most:.1f}",
        *(f"{usd:.2f}" for usd in dollars),
    )


async def _study(report: Report, uri: str, config: Path | None) -> str:
    settings = load_settings(config, environment=process_environment())
    writer = StudyWriter(uri, call_experiment=settings.mlflow.experiment)
    try:
        return (await writer.write(report, params={"source": report.dataset})).url
    except StudyFailed as exc:
        raise Refused(f"{exc}. Use --no-mlflow to do without it.") from exc
    finally:
        await writer.aclose()
