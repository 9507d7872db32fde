"""What the call log costs and how fast it drains; prints one table. `python -m benchmarks.log [--json OUT]`.

CPU is this process's, so neither Postgres' nor MLflow's. `--outage` drains as many records into SQL and MLflow at
once, as after an outage of MLflow: sampled as it would be then, which takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from gateway.ids import new_ulid
from logging_layer import segment
from logging_layer.call_log import CallLog
from logging_layer.feed import Feed
from logging_layer.jsonl_sink import JsonlSink
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.shipper import Shipper
from logging_layer.shipper_parts import sampled
from logging_layer.sink import Sink
from logging_layer.spool import Spool
from logging_layer.sql_sink import SqlSink
from logging_layer.stages import timed, timed_handler
from orchestration.core import Attempt, Call, Delta, Event, Finish, Handler, Kind, Request, Start, Usage, compose
from orchestration.core.memory import settle_memory

_LAYERS = ("limits", "input_checks", "exact_cache", "semantic_cache", "output_checks")
_ANSWER = "The capital of France is Paris, a city of two million people on the Seine. " * 8


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    num_records: int
    records_per_s: float
    cpu_us_per_record: float


def main() -> None:
    """Run every case, one after the other."""
    options = _parser().parse_args()
    settle_memory()  # as workers and the shipper do
    rows = asyncio.run(measure(options))
    table = Table(title=f"the call log (load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores)")
    for heading in ("case", "records", "records/s", "CPU us/record"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        table.add_row(row.name, f"{row.num_records:,}", f"{row.records_per_s:,.0f}", f"{row.cpu_us_per_record:.1f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


async def measure(options: argparse.Namespace) -> list[Row]:
    """Measure the hot path, then each sink from a spool of its own."""
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as name:
        folder = Path(name)
        rows = [await _record_cost(folder / "hot")]
        sample = _lines_of(segment.list_segments(folder / "hot"))
        sizes: dict[str, Callable[[], Sink]] = {
            "spool to SQLite": lambda: SqlSink(f"sqlite:///{folder}/lamina.db"),
            "spool to JSONL": lambda: JsonlSink(folder / "lines", max_file_bytes=2**26, max_files=3),
        }
        for name, build in sizes.items():
            rows.append(await _drain(name, folder / name, sample, options.records, [build()]))
        with _postgres() as url:
            rows.append(await _drain("spool to Postgres", folder / "pg", sample, options.records // 5, [SqlSink(url)]))
        async with _mlflow(folder) as uri:
            sink = MlflowSink(uri, experiment="bench")
            rows.append(await _drain("spool to MLflow", folder / "ml", sample, options.traces, [sink]))
            if options.outage:
                both: list[Sink] = [SqlSink(f"sqlite:///{folder}/outage.db"), MlflowSink(uri, experiment="outage")]
                rows.append(await _drain("SQLite and MLflow, sampled", folder / "out", sample, options.records, both))
    return rows


async def _record_cost(folder: Path) -> Row:
    """Compare calls through an onion with and without the log, in turns; the spool's thread counts, too."""
    spool = Spool(folder, worker="bench")
    await spool.start()
    inner = [timed(name, _passing) for name in _LAYERS]
    core = timed_handler("router", _answering)
    handlers = [compose(inner, core), compose([CallLog(spool, content="full", worker="bench"), *inner], core)]
    block, costs = 400, list[float]()
    for _ in range(12):
        spent = []
        for handler in handlers:
            begun = time.process_time()
            for _ in range(block):
                await _ask(handler)
            await spool.flush()
            spent.append((time.process_time() - begun) / block)
        costs.append(spent[1] - spent[0])
    await spool.aclose()
    cost_s = statistics.median(costs)
    return Row("a call's record, to the disk", block * len(costs), 1.0 / cost_s, cost_s * 1e6)


async def _drain(name: str, folder: Path, sample: Sequence[bytes], num: int, sinks: Sequence[Sink]) -> Row:
    """Ship a spool of so many records, which is there already, to its end."""
    await asyncio.to_thread(_fill, folder, sample, num)
    feeds = [
        Feed(folder, sink, choose=sampled(1.0)) if sink.name == "mlflow" and len(sinks) > 1 else Feed(folder, sink)
        for sink in sinks
    ]
    shipper, stopping = Shipper(folder, feeds, drain_s=3600.0), asyncio.Event()
    shipper.start()
    stopping.set()
    begun, cpu = time.monotonic(), time.process_time()
    await shipper.run(stopping)
    taken_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
    await shipper.aclose()
    if shipper.problems() or segment.list_segments(folder):
        raise SystemExit(f"{name}: not everything arrived: {shipper.problems()}")
    return Row(name, num, num / taken_s, cpu_s / num * 1e6)


def _fill(folder: Path, sample: Sequence[bytes], num: int) -> None:
    """Write segments as a worker that is gone left them, each record under an id of its own."""
    folder.mkdir()
    for first in range(0, num, 5000):
        lines = []
        for number in range(first, min(first + 5000, num)):
            data = sample[number % len(sample)]
            known = json.loads(data)["id"].encode()
            lines.append(segment.line_of(data.replace(known, new_ulid().encode())))
        path, descriptor = segment.create(folder, worker="bench")
        os.close(descriptor)
        path.write_bytes(b"".join(lines))


def _lines_of(paths: Sequence[Path]) -> list[bytes]:
    found = [line.data for path in paths for line in segment.read_lines(path) if line.data is not None]
    return found[:200]


async def _ask(handler: Handler) -> None:
    fields = {"model": "small", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    call = Call(
        id=new_ulid(),
        request_id="bench",
        tenant="bench",
        request=Request(kind=Kind.CHAT, dialect="openai.chat", fields=fields),
        received_at=time.time(),
        started=time.monotonic(),
    )
    async with aclosing(handler(call)) as events:
        async for _ in events:
            pass


async def _passing(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
    async with aclosing(next(call)) as events:
        async for event in events:
            yield event


async def _answering(call: Call, /) -> AsyncGenerator[Event, None]:
    call.notes.model, call.notes.backend, call.notes.cost_usd = "small-1", "echo", 0.00002
    call.notes.attempts.append(Attempt("small", "echo", duration_ms=0.01))
    yield Start("small-1", "echo")
    yield Delta(text=_ANSWER)
    yield Finish(usage=Usage(prompt_tokens=12, completion_tokens=140))


@contextmanager
def _postgres() -> Iterator[str]:
    """Run a Postgres meanwhile; its files lie where the user that it runs as under root may read them."""
    with tempfile.TemporaryDirectory(prefix="lamina-pg-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        import pgserver  # looks at the environment when it is imported

        server = pgserver.get_server(f"{folder}/data", cleanup_mode="stop")
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://", 1)
        finally:
            server.cleanup()


@asynccontextmanager
async def _mlflow(folder: Path) -> AsyncIterator[str]:
    """Run an MLflow server on SQLite meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop meanwhile
        command,
        env={**os.environ, **quiet},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        uri = f"http://127.0.0.1:{port}"
        await _answers(uri)
        yield uri
    finally:
        os.killpg(process.pid, 15)
        process.wait(timeout=20)


async def _answers(uri: str) -> None:
    async with httpx.AsyncClient(timeout=5.0) as client, asyncio.timeout(180.0):
        while True:
            try:
                if (await client.get(f"{uri}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="how many records SQLite and JSONL drain")
    parser.add_argument("--traces", type=int, default=1_500, help="how many records MLflow drains")
    parser.add_argument("--outage", action="store_true", help="drain all records into SQLite and MLflow, sampled")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    return parser


if __name__ == "__main__":
    main()
