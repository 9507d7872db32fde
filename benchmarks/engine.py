"""Measure the engine alone, over its link: `python -m benchmarks.engine [-- FLAGS OF THE ENGINE]`.

Closed loop: so many clients, each with a prompt of 40 to 64 random tokens and 64 tokens of output. Every variant's
engine runs in turn, `--repeats` times; CPU seconds are those of the engine's process, the load is the machine's before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack
from rich.console import Console
from rich.table import Table

from gateway import model_store
from lab.bench.process_tree import cpu_s

VARIANTS = {"reference": ["--kernels", "reference"], "kernels": ["--kernels", "auto"]}
OUTPUT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One run: output tokens and engine CPU over a wall time, and the median time to the first token."""

    variant: str
    concurrency: int
    tokens_per_s: float
    cpu_ms_per_token: float
    cpu_s: float
    wall_s: float
    first_token_ms: float
    load: float


class Link:
    """One connection to an engine: submits, and follows its steps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def submit(self, request_id: int, prompt: list[int]) -> None:
        """Send one greedy request."""
        self._send(
            op="submit", id=request_id, prompt=prompt, max_tokens=OUTPUT_TOKENS, temperature=0.0, top_p=1.0, top_k=0,
            seed=None, stop_ids=[], ignore_eos=True, logprobs=None, salt=str(request_id), priority=0,
        )  # fmt: skip

    async def receive(self) -> dict[str, Any]:
        """Return the next message."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        message: dict[str, Any] = msgpack.unpackb(await self._reader.readexactly(size))
        return message

    def _send(self, **message: object) -> None:
        body = msgpack.packb(message)
        self._writer.write(len(body).to_bytes(4, "big") + body)


class Engine:
    """An engine's process and the link to it."""

    def __init__(self, link: Link, pid: int) -> None:
        self._link = link
        self._pid = pid
        self._next_id = 0

    async def run(self, variant: str, concurrency: int, num_requests: int) -> Row:
        """Keep `concurrency` requests alive until `num_requests` are answered."""
        begun_at: dict[int, float] = {}
        firsts: list[float] = []
        load, cpu, begun = os.getloadavg()[0], cpu_s(self._pid), time.perf_counter()
        left, num_tokens = num_requests, 0
        for _ in range(min(concurrency, left)):
            left -= 1
            self._submit(begun_at)
        while begun_at:
            message = await self._link.receive()
            if message["op"] != "step":
                raise SystemExit(f"the engine answered {message}")
            for request_id, tokens, _, finish, _ in message["rows"]:
                num_tokens += len(tokens)
                if request_id in begun_at and begun_at[request_id] > 0:
                    firsts.append(time.perf_counter() - begun_at[request_id])
                    begun_at[request_id] = 0.0
                if finish is not None:
                    del begun_at[request_id]
                    if left:
                        left -= 1
                        self._submit(begun_at)
        wall, cpu = time.perf_counter() - begun, cpu_s(self._pid) - cpu
        first_ms = statistics.median(firsts) * 1e3
        return Row(variant, concurrency, num_tokens / wall, cpu / num_tokens * 1e3, cpu, wall, first_ms, load)

    def _submit(self, begun_at: dict[int, float]) -> None:
        self._next_id += 1
        draw = random.Random(self._next_id)
        prompt = [draw.randrange(1000, 40000) for _ in range(draw.randint(40, 64))]
        begun_at[self._next_id] = time.perf_counter()
        self._link.submit(self._next_id, prompt)


@contextlib.asynccontextmanager
async def running(model: Path, flags: list[str]) -> AsyncIterator[Engine]:
    """Start an engine in a process of its own; end it by its pid."""
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as folder:
        address = f"{folder}/engine.sock"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "backends.engine", "--listen", f"unix://{address}", "--model", str(model),
            "--name", "bench", *flags, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            while json.loads(await process.stdout.readline() or '{"event": "ready"}')["event"] != "ready":
                pass
            yield Engine(Link(*await asyncio.open_unix_connection(address)), process.pid)
        finally:
            process.terminate()
            await process.wait()


async def measure(options: argparse.Namespace) -> list[Row]:
    """Run every variant in turn, so that whatever else the machine does meets them all."""
    model = model_store.fetch("smollm2-135m-instruct")
    rows = []
    for _ in range(options.repeats):
        for variant in options.variants:
            async with running(model, [*VARIANTS[variant], *options.flags]) as engine:
                await engine.run(variant, 2, 2)
                for concurrency in options.concurrency:
                    rows.append(await engine.run(variant, concurrency, max(2, concurrency * options.rounds)))
    return rows


def show(rows: list[Row]) -> None:
    """Print the medians over the repeats."""
    table = Table(title=f"The engine over its link, {OUTPUT_TOKENS} tokens out")
    for heading in ("variant", "clients", "tokens/s", "CPU ms/token", "CPU s", "wall s", "first token ms", "load"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for variant, concurrency in dict.fromkeys((row.variant, row.concurrency) for row in rows):
        same = [
            list(asdict(row).values())[2:] for row in rows if (row.variant, row.concurrency) == (variant, concurrency)
        ]
        medians = (statistics.median(column) for column in zip(*same, strict=True))
        table.add_row(variant, str(concurrency), *(f"{figure:,.2f}" for figure in medians))
    Console(width=120).print(table)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=1, help="requests per client (default: 1)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    parser.add_argument("flags", nargs="*", help="flags for the engine, after --")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
