"""The rows as one table: medians over the repeats, with the least and the most."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from lab.bench.engine.run import Outcome, Row

_WIDTH = 230

_Value = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading and what stands in it for the repeats of one contestant under one load."""

    heading: str
    cell: Callable[[Sequence[Row]], str]


@dataclass(frozen=True, slots=True)
class Standing:
    """What ours gives under one load, as a multiple of the best rival with as many bits to a weight."""

    load: str
    bits: int
    ours: str
    rival: str
    ratio: float


def columns() -> Sequence[Column]:
    """Return the table's columns after contestant and load."""
    return (
        Column("output tok/s", lambda rows: _spread(rows, lambda row: row.figures.output_tokens_per_s)),
        Column("requests/s", lambda rows: _median(rows, lambda row: row.figures.requests_per_s, digits=2)),
        Column("goodput/s", lambda rows: _median(rows, lambda row: row.figures.goodput_per_s, digits=2)),
        Column("TTFT ms p50 / p99", lambda rows: _percentiles(rows, "ttft_ms")),
        Column("TPOT ms p50 / p99", lambda rows: _percentiles(rows, "tpot_ms", digits=1)),
        Column("ITL ms p50 / p99", lambda rows: _percentiles(rows, "itl_ms", digits=1)),
        Column("E2E ms p50 / p99", lambda rows: _percentiles(rows, "e2e_ms")),
        Column("tok/CPU s", lambda rows: _median(rows, _tokens_per_cpu_s, digits=0)),
        Column("server CPU s", lambda rows: _median(rows, lambda row: row.server_cpu_s, digits=1)),
        Column("client CPU s", lambda rows: _median(rows, lambda row: row.client_cpu_s, digits=2)),
        Column("KV %", lambda rows: _median(rows, _kv_percent, digits=0)),
        Column("hits %", lambda rows: _median(rows, _hit_percent, digits=0)),
        Column("preempted", lambda rows: _median(rows, lambda row: row.server.preemptions, digits=0)),
        Column("failed", lambda rows: str(sum(row.figures.num_incomplete for row in rows))),
        Column("load avg", lambda rows: _median(rows, lambda row: row.load_average, digits=1)),
    )


def cells(outcome: Outcome) -> Sequence[Sequence[str]]:
    """Return the table's lines: by load, then by contestant, in the order in which they were measured."""
    lines = []
    for load in dict.fromkeys(row.load for row in outcome.rows):
        for name in dict.fromkeys(row.contestant for row in outcome.rows):
            rows = [row for row in outcome.rows if (row.load, row.contestant) == (load, name)]
            if rows:
                lines.append([load, name, *(column.cell(rows) for column in columns())])
    return lines


def headings() -> Sequence[str]:
    """Return the table's headings."""
    return ["load", "engine", *(column.heading for column in columns())]


def standings(outcome: Outcome) -> Sequence[Standing]:
    """Return how each of ours stands beside the best rival at equal bits, by the medians of output tokens a second."""
    found = []
    for load in dict.fromkeys(row.load for row in outcome.rows):
        speed = _speeds(row for row in outcome.rows if row.load == load)
        for bits in sorted({bits for _, bits, is_ours in speed if is_ours}, reverse=True):
            ours, rivals = (
                {name: rate for (name, each, is_ours), rate in speed.items() if (each, is_ours) == (bits, wanted)}
                for wanted in (True, False)
            )
            if rivals:
                mine, best = max(ours, key=ours.__getitem__), max(rivals, key=rivals.__getitem__)
                found.append(Standing(load, bits, mine, best, ours[mine] / rivals[best]))
    return found


def show(outcome: Outcome) -> None:
    """Print the table, how ours stands, and whatever went wrong."""
    table = Table(title="The engine under load, as a client on the same machine sees it")
    for heading in headings():
        table.add_column(heading, justify="left" if heading in ("load", "engine") else "right")
    for line in cells(outcome):
        table.add_row(*line)
    console = Console(width=_WIDTH, highlight=False)
    console.print(table)
    for standing in standings(outcome):
        ratio = f"{standing.ratio:.2f} x {standing.rival}"
        console.print(f"{standing.load}, {standing.bits} bits: {standing.ours} gives {ratio}")
    for fault in faults(outcome):
        console.print(fault, markup=False)


def faults(outcome: Outcome) -> Sequence[str]:
    """Say what went wrong, a line each."""
    lines = [f"{name} was left out: {why}" for name, why in outcome.left_out.items()]
    for row in outcome.rows:
        where = f"{row.contestant}, {row.load}, repeat {row.repeat + 1}"
        lines += [f"{where}: {error}" for error in row.figures.errors]
        if row.figures.num_cached:
            lines.append(f"{where}: {row.figures.num_cached} answers came from a cache of answers; change --seed")
    return lines


def markdown(outcome: Outcome) -> str:
    """Return the table, and how ours stands, as Markdown."""
    lines = [headings(), ["---"] * len(headings()), *cells(outcome)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    told = standings(outcome)
    if told:
        text += "\n| load | bits | ours | best rival | ours / rival |\n| --- | --- | --- | --- | --- |\n"
        text += "".join(f"| {s.load} | {s.bits} | {s.ours} | {s.rival} | {s.ratio:.2f} |\n" for s in told)
    return text


def _speeds(rows: Iterable[Row]) -> dict[tuple[str, int, bool], float]:
    by_name: dict[tuple[str, int, bool], list[float]] = {}
    for row in rows:
        by_name.setdefault((row.contestant, row.bits, row.is_ours), []).append(row.figures.output_tokens_per_s)
    return {name: statistics.median(rates) for name, rates in by_name.items()}


def _tokens_per_cpu_s(row: Row) -> float | None:
    return row.figures.output_tokens / row.server_cpu_s if row.server_cpu_s else None


def _kv_percent(row: Row) -> float | None:
    return None if row.server.kv_usage_max is None else row.server.kv_usage_max * 100


def _hit_percent(row: Row) -> float | None:
    return None if row.server.hit_rate is None else row.server.hit_rate * 100


def _spread(rows: Sequence[Row], value: _Value) -> str:
    values = _values(rows, value)
    if not values:
        return "-"
    spread = f" ({min(values):,.0f}-{max(values):,.0f})" if len(values) > 1 else ""
    return f"{statistics.median(values):,.0f}{spread}"


def _median(rows: Sequence[Row], value: _Value, *, digits: int) -> str:
    values = _values(rows, value)
    return f"{statistics.median(values):,.{digits}f}" if values else "-"


def _percentiles(rows: Sequence[Row], field: str, *, digits: int = 0) -> str:
    return " / ".join(
        _median(rows, lambda row: getattr(row.figures, field).get(percentile), digits=digits)  # noqa: B023 - used here
        for percentile in ("p50", "p99")
    )


def _values(rows: Sequence[Row], value: _Value) -> Sequence[float]:
    return [found for row in rows if (found := value(row)) is not None]
