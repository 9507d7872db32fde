"""`lamina bench cache-speed`: its options. What measuring needs is imported when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def cache_speed(
    batching: Annotated[
        bool, typer.Option("--batching", help="Sweep queue delay, batch size and workers on the real encoder instead.")
    ] = False,
    scale: Annotated[
        bool, typer.Option("--scale", help="Measure the index from 1,000 entries to --entries instead.")
    ] = False,
    rivals: Annotated[
        bool, typer.Option("--rivals", help="With --scale: beside FAISS' flat search, other IVFs and HNSW.")
    ] = False,
    requests: Annotated[int, typer.Option(min=20, help="Of each case.")] = 300,
    entries: Annotated[int | None, typer.Option(min=100, help="Stored: 1,000, or 1,000,000 with --scale.")] = None,
    pgvector_url: Annotated[str | None, typer.Option(help="Keep the index in this Postgres.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure there.")] = None,
) -> None:
    """Measure how long hits take through a real `lamina serve`, one request at a time; about a minute.

    A semantic hit is asked in a spelling that no cache has seen. CPU time is that of all the server's processes: it
    says more than the clock on a machine that does other things, too.
    """
    from lab.bench.cache.embedding import EncoderMissing
    from lab.bench.cache.speed_report import measure_speed, show

    try:
        if batching:
            report: dict[str, Any] = measure_speed("batching", requests=requests)
        elif scale:
            report = measure_speed("scale", entries=entries or 1_000_000, has_rivals=rivals)
        else:
            report = measure_speed("latency", requests=requests, entries=entries or 1000, pgvector_url=pgvector_url)
    except (EncoderMissing, OSError) as exc:
        typer.echo(f"lamina bench cache-speed: {exc}", err=True)
        raise typer.Exit(1) from exc
    show(report)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
