"""`lamina bench gateway`: its options. What measuring needs is imported when it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer


def gateway(  # noqa: PLR0913 - every option is a parameter
    concurrency: Annotated[str, typer.Option(help="Clients of the closed loop, one run each.")] = "1,32",
    seconds: Annotated[float, typer.Option(min=0.2, help="Of each run.")] = 4.0,
    repeats: Annotated[int, typer.Option(min=1, help="Of everything, in turn.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Of our gateway.")] = 1,
    against: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COMMAND of another gateway, litellm or portkey; its settings and port are added."),
    ] = None,
    streams: Annotated[int, typer.Option(min=0, help="Streams of 10 events a second to hold at once.")] = 512,
    stream_seconds: Annotated[int, typer.Option(min=1, help="How long to hold them.")] = 10,
    soak: Annotated[int, typer.Option(min=0, help="Requests between two looks at our memory; 0 leaves it out.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run's figures there.")] = None,
) -> None:
    """Measure what the gateway adds: no gateway, ours with everything on, and others where asked.

    Ours is started in a temporary folder with an issued key that has every limit (requests, tokens, calls at once,
    budget), the exact cache and the call log; "whole" and "stream" are misses of the cache. All targets ask the same
    stand-in for a provider in turn, so that a busy spell of the machine meets them all. CPU is summed over a target's
    whole process tree, for ours with its log shipped.
    """
    import uvloop  # so that other commands' help stays quick

    from lab.bench.gateway.run import Plan, measure, show, write

    plan = Plan(
        concurrency=[int(count) for count in concurrency.split(",")],
        repeats=repeats,
        seconds=seconds,
        rivals=_rivals(against or []),
        workers=workers,
        num_paced=streams,
        paced_s=stream_seconds,
        num_soaked=soak,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(measure(plan))
    show(outcome)
    if json_file is not None:
        write(outcome, json_file)


def _rivals(against: list[str]) -> dict[str, str]:
    rivals = {}
    for one in against:
        name, _, command = one.partition("=")
        if name not in ("litellm", "portkey") or not command:
            raise typer.BadParameter(f"--against is litellm=COMMAND or portkey=COMMAND, not {one!r}")
        rivals[name] = command
    return rivals
