"""Run the measurements of speed and print them: tables of whatever columns the rows have."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.bench.cache.batching import measure_batching
from lab.bench.cache.large import measure_large
from lab.bench.cache.latency import measure_latency
from lab.bench.cache.processes import find_model
from lab.bench.cache.scale import SIZES, measure_restart, measure_scale

Report = dict[str, Any]


def measure_speed(what: str, **options: Any) -> Report:
    """Measure `latency`, `batching` or `scale`; returns titled tables, each a list of rows by column."""
    measured = _MEASURES[what](**options)
    return {"what": what, "tables": measured, "load_average": os.getloadavg()[0]}


def show(report: Report) -> None:
    """Print every table, and the load that the machine was under."""
    console = Console(width=140)
    for title, rows in report["tables"].items():
        console.print(_table(title, rows))
    console.print(f"load average {report['load_average']:.1f} on {os.cpu_count()} cores")


def _latency(*, requests: int, entries: int, pgvector_url: str | None) -> Report:
    index = "pgvector" if pgvector_url is not None else "faiss"
    found = measure_latency(requests=requests, entries=entries, index=index, pgvector_url=pgvector_url)
    title = f"{found['requests']} requests each, one at a time, {found['entries']} entries, index {index}"
    return {title: found["rows"]}


def _batching(*, requests: int) -> Report:
    return {"look-ups by the owner, texts all new": measure_batching(find_model(), requests=requests)["rows"]}


def _scale(*, entries: int, has_rivals: bool) -> Report:
    sizes = (*(size for size in SIZES if size < entries), entries)
    model = find_model()
    return {
        "in memory, over at most 10,000 partitions": measure_scale(sizes),
        "the owner as a process, over the same": [asdict(measure_restart(model, size)) for size in sizes],
        f"one partition of {entries:,}": measure_large(entries, has_rivals=has_rivals),
    }


_MEASURES: Mapping[str, Callable[..., Report]] = {"latency": _latency, "batching": _batching, "scale": _scale}


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
