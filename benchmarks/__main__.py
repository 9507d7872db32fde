"""Measure the gateway and its engine as a client sees them; print one table. `python -m benchmarks [--json OUT]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.load import Row, closed_loop
from benchmarks.server import Server, serving

QUESTION = "What is the capital of France?"
PARAPHRASE = "What's the capital of France?"
NONCE = time.time_ns()


def main() -> None:
    """Run every case against one server, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    with serving() as server:
        rows = asyncio.run(measure(server))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


async def measure(server: Server) -> list[Row]:
    """Measure the pipeline on the echo backend, then each cache, then the engine."""
    await run(server, "fill", 1, 2, lambda n: chat(f"hit {n}", model="echo"), "miss")
    await run(server, "fill", 1, 2, lambda n: asked(QUESTION if n else "Who wrote Hamlet?"), "miss")
    rows = []
    for clients, requests in ((1, 500), (32, 4000)):
        rows.append(await run(server, "echo, all layers, miss", clients, requests, unique_echo(clients), "miss"))
    for clients, requests in ((1, 500), (32, 4000)):
        rows.append(
            await run(server, "exact hit", clients, requests, lambda n: chat(f"hit {n % 2}", model="echo"), "exact")
        )
    for clients, requests in ((1, 200), (32, 1000)):
        rows.append(await run(server, "semantic hit", clients, requests, lambda _: asked(PARAPHRASE), "semantic"))
    for clients, requests in ((1, 16), (4, 32), (16, 64), (64, 128)):
        rows.append(await run(server, "engine, 64 tokens out", clients, requests, story(clients), "miss"))
    return rows


async def run(
    server: Server, name: str, clients: int, requests: int, body_of: Callable[[int], dict[str, Any]], cache: str
) -> Row:
    """Run one case."""
    return await closed_loop(
        server, name=name, concurrency=clients, num_requests=requests, body_of=body_of, expect_cache=cache
    )


def unique_echo(clients: int) -> Callable[[int], dict[str, Any]]:
    """Write requests that no cache has seen."""
    return lambda n: chat(f"{NONCE} {clients} {n}", model="echo")


def story(clients: int) -> Callable[[int], dict[str, Any]]:
    """Write requests whose answers are long, each with a prompt of about 40 tokens of its own."""
    tale = "Tell a long story about a lighthouse, its keeper, and the storm of that winter."
    return lambda n: {
        **chat(f"Number {NONCE} {clients} {n}. {tale}", model="smollm2-135m-instruct"),
        "max_tokens": 64,
        "seed": 1,
    }


def asked(text: str) -> dict[str, Any]:
    """Write a request that the semantic cache may answer: its temperature is stated and low."""
    return {**chat(text, model="echo"), "temperature": 0}


def chat(text: str, *, model: str) -> dict[str, Any]:
    """Write a request that the semantic cache leaves alone."""
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table(title="Lamina, as a client on the same machine sees it")
    for heading in (
        "case",
        "clients",
        "requests",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "CPU ms/request",
        "tokens/s",
        "otherwise",
    ):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        name, clients, requests, *figures, otherwise = asdict(row).values()
        table.add_row(name, str(clients), str(requests), *(f"{figure:,.2f}" for figure in figures), str(otherwise))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
