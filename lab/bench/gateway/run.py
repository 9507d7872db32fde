"""One interleaved run of the gateway's benchmark: every repeat goes through all targets at each load."""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.bench.gateway.cases import Paced, Row, hits, misses, run_case, run_paced, wait_until_drained
from lab.bench.gateway.client import run_load
from lab.bench.gateway.targets import Running, lamina, litellm, mock_upstream, portkey
from lab.bench.process_tree import rss_by_process

_STARTERS = {"litellm": litellm, "portkey": portkey}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: `rivals` are commands by name; the last three are 0 where they are left out."""

    concurrency: Sequence[int]
    repeats: int
    seconds: float
    rivals: dict[str, str]
    workers: int = 1
    num_paced: int = 0
    paced_s: int = 10
    num_soaked: int = 0


@dataclass(slots=True)
class Outcome:
    """Every run's figures; `rss_mb` is the memory of each process of ours before and after the soak."""

    rows: list[Row] = field(default_factory=list)
    paced: list[Paced] = field(default_factory=list)
    rss_mb: dict[str, tuple[float, float]] = field(default_factory=dict)


async def measure(plan: Plan) -> Outcome:
    """Start everything, measure it in turn, and end it."""
    _allow_many_files()
    outcome = Outcome()
    with _targets(plan) as targets:
        ours = next(target for target in targets if target.name == "lamina")
        for target in targets:
            await run_load(target.target, misses(is_streamed=False).body_of, concurrency=4, num_requests=100)
        await run_load(ours.target, hits().body_of, concurrency=1, num_requests=50)
        for repeat in range(plan.repeats):
            print(f"repeat {repeat + 1} of {plan.repeats}", file=sys.stderr)
            outcome.rows += await _repeat(plan, targets, ours)
        if plan.num_paced:
            for target in targets:
                outcome.paced.append(await run_paced(target, num_streams=plan.num_paced, seconds=plan.paced_s))
        if plan.num_soaked:
            outcome.rss_mb = await _soak(ours, plan.num_soaked)
    return outcome


async def _repeat(plan: Plan, targets: Sequence[Running], ours: Running) -> list[Row]:
    rows = []
    for concurrency in plan.concurrency:
        for is_streamed in (False, True):
            for target in targets:
                case = misses(is_streamed=is_streamed)
                rows.append(await run_case(target, case, concurrency=concurrency, seconds=plan.seconds))
        rows.append(await run_case(ours, hits(), concurrency=concurrency, seconds=plan.seconds))
    return rows


async def _soak(ours: Running, num_requests: int) -> dict[str, tuple[float, float]]:
    """Send so many requests; the cache's store grows by their answers up to its bound, the others should not."""
    await run_load(ours.target, misses(is_streamed=False).body_of, concurrency=32, num_requests=2_000)
    await wait_until_drained(ours)
    before = rss_by_process(ours.pid)
    await run_load(ours.target, misses(is_streamed=False).body_of, concurrency=32, num_requests=num_requests)
    await wait_until_drained(ours)
    after = rss_by_process(ours.pid)
    return {name: (before.get(name, 0.0), size) for name, size in after.items()}


@contextlib.contextmanager
def _targets(plan: Plan) -> Iterator[list[Running]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lamina-bench-")))
        upstream = stack.enter_context(mock_upstream())
        targets = [upstream]
        for name in ("lamina", *plan.rivals):
            (folder / name).mkdir()
        targets.append(stack.enter_context(lamina(upstream.target.url, folder / "lamina", workers=plan.workers)))
        for name, command in plan.rivals.items():
            targets.append(stack.enter_context(_STARTERS[name](command, upstream.target.url, folder / name)))
        yield targets


def _allow_many_files() -> None:
    """Raise this process's bound on open files, and so that of the servers that it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def show(outcome: Outcome) -> None:
    """Print the table: medians over the repeats, and what is added to the same case without a gateway."""
    table = Table(title="Gateways before the same stand-in for a provider, medians over the repeats")
    headings = ("case", "clients", "target", "requests/s", "added p50 ms", "added p99 ms", "first +ms", "token +ms")
    for heading in (*headings, "CPU us", "errors"):
        table.add_column(heading, justify="left" if heading in ("case", "target") else "right")
    rows = outcome.rows
    for case, concurrency, target in dict.fromkeys((row.case, row.concurrency, row.target) for row in rows):
        same = [row for row in rows if (row.case, row.concurrency, row.target) == (case, concurrency, target)]
        plain = "whole" if case == "exact hit" else case
        none = [row for row in rows if (row.case, row.concurrency, row.target) == (plain, concurrency, "no gateway")]
        added = (
            _cell(_median(same, name), _median(none, name)) for name in ("p50_ms", "p99_ms", "first_ms", "token_ms")
        )
        table.add_row(
            case,
            str(concurrency),
            target,
            _cell(_median(same, "requests_per_s"), 0.0),
            *added,
            _cell(_median(same, "cpu_us"), 0.0),
            str(sum(row.num_errors for row in same)),
        )
    console = Console(width=140)
    console.print(table)
    for one in outcome.paced:
        console.print(
            f"{one.target}: {one.num_streams} streams of 10 events/s, {one.num_stalled} stalled over 1 s, "
            f"{one.num_errors} errors, longest gap {one.longest_gap_ms:.0f} ms, "
            f"first token p99 {one.first_p99_ms:.0f} ms"
        )
    for name, (before, after) in outcome.rss_mb.items():
        console.print(f"memory of {name}: {before:.0f} MB before, {after:.0f} MB after the soak")


def write(outcome: Outcome, file: Path) -> None:
    """Write every run's figures as JSON."""
    file.write_text(json.dumps(asdict(outcome), indent=2))


def _median(rows: Sequence[Row], name: str) -> float | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return statistics.median(values) if values else None


def _cell(value: float | None, less: float | None) -> str:
    if value is None or less is None:
        return ""
    return f"{value - less:,.3f}" if value < 100 else f"{value - less:,.0f}"
