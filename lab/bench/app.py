"""The commands of `lamina bench`. What a command needs is imported when it runs, so that `--help` stays quick."""

from __future__ import annotations

import typer

from lab.bench.engine.command import engine

app = typer.Typer(no_args_is_help=True, help="Measure the engine, the gateway and the caches on this machine.")


@app.callback()
def bench() -> None:
    """Measure; every command prints one table and writes it with --json."""


app.command("engine")(engine)
