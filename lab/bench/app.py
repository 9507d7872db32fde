"""The commands of `lamina bench`. What a command needs is imported when it runs, so that `--help` stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.bench.cache.command import cache
from lab.bench.cache.speed_command import cache_speed
from lab.bench.engine.command import engine
from lab.bench.gateway.command import gateway

app = typer.Typer(no_args_is_help=True, help="Measure the engine, the gateway and the caches on this machine.")


@app.callback()
def bench() -> None:
    """Measure; every command prints one table and writes it with --json."""


app.command("engine")(engine)
app.command("cache")(cache)
app.command("cache-speed")(cache_speed)
app.command("gateway")(gateway)


@app.command()
def admission(
    requests: Annotated[int | None, typer.Option(min=20, help="Of each trace, instead of 1,000 and 800.")] = None,
    seed: Annotated[int, typer.Option(help="Of the traces.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there.")] = None,
) -> None:
    """Compare the admission policies on one trace, by the real scheduler on a simulated machine and clock."""
    from lab.admission.__main__ import run  # the scheduler and the tables are not for every command

    run(num_requests=requests, seed=seed, json_file=json_file)
