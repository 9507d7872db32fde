"""`python -m lab.admission`, also `lamina bench admission`: one table a case; seeds are fixed, nothing is timed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.admission.machine import LLAMA_3_8B, OPT_13B, Machine
from lab.admission.simulator import Result, compare
from lab.admission.trace import TraceShape, make_trace
from lab.bench.engine.figures import percentile

ADMISSIONS = ("reserve", "greedy", "future_peak")
_WIDTH = 150


@dataclass(frozen=True, slots=True)
class Case:
    """A machine and the trace that it serves."""

    machine: Machine
    shape: TraceShape
    page_sizes: Sequence[int]


CASES = (
    Case(LLAMA_3_8B, TraceShape(13, 1000, mean_prompt_tokens=400, mean_output_tokens=200), (16,)),
    Case(OPT_13B, TraceShape(8, 800, mean_prompt_tokens=161, mean_output_tokens=338), (1, 16)),
)
"""Prompts of about 400 and answers of about 200 tokens; and ShareGPT's means, at more than the machine can do."""


def run(*, num_requests: int | None = None, seed: int = 0, json_file: Path | None = None) -> None:
    """Run every case and print its table."""
    console, document = Console(width=_WIDTH, highlight=False), []
    for case in CASES:
        shape = case.shape if num_requests is None else _shortened(case.shape, num_requests)
        trace = make_trace(shape, seed=seed)
        results = compare(case.machine, trace, admissions=ADMISSIONS, page_sizes=case.page_sizes)
        rows = [_figures(*key, result) for key, result in results.items()]
        title = f"{case.machine.name}: {case.machine.kv_tokens:,} KV tokens, {shape.rate_per_s:g} requests/s"
        console.print(_table(f"{title}, {shape.num_requests} requests, seed {seed}", rows))
        document.append({"case": title, "requests": shape.num_requests, "seed": seed, "rows": rows})
    if json_file:
        json_file.write_text(json.dumps(document, indent=1))


def _shortened(shape: TraceShape, num_requests: int) -> TraceShape:
    return TraceShape(
        shape.rate_per_s,
        num_requests,
        mean_prompt_tokens=shape.mean_prompt_tokens,
        mean_output_tokens=shape.mean_output_tokens,
    )


def _figures(admission: str, page_size: int, result: Result) -> Mapping[str, Any]:
    return {
        "admission": admission,
        "page": page_size,
        "output tok/s": round(result.output_tokens_per_s, 1),
        "TTFT p50 s": _percentile(result.ttft_s, 50),
        "TTFT p99 s": _percentile(result.ttft_s, 99),
        "TPOT p99 ms": round(_percentile(result.tpot_s, 99) * 1e3, 1),
        "E2E p99 s": _percentile(result.e2e_s, 99),
        "preemptions": result.preemptions,
        "wasted tokens": result.wasted_tokens,
        "wasted %": round(100 * result.wasted_tokens / result.computed_tokens, 2),
        "running": round(result.mean_running, 1),
        "KV %": round(result.mean_kv_usage * 100, 1),
    }


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title)
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == "admission" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else value for value in row.values()))
    return table


def _percentile(values: Sequence[float], percent: float) -> float:
    return round(percentile(sorted(values), percent), 3)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m lab.admission", description=__doc__)
    parser.add_argument("--requests", type=int, default=None, help="of each trace, instead of 1,000 and 800")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, help="write the figures there, too")
    options = parser.parse_args()
    run(num_requests=options.requests, seed=options.seed, json_file=options.json)


if __name__ == "__main__":
    main()
