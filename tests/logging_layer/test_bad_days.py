"""Bad days of the log as processes live them: MLflow hangs or refuses, disks fill up, anybody is killed at any time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from logging_layer.jsonl_sink import FILE, ROTATED
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.record import Outcome
from logging_layer.segment import list_segments
from logging_layer.shipper_parts import BEARABLE_BACKLOG_BYTES
from logging_layer.spool import Spool, SpoolLimits
from orchestration.core.rpc import RpcClient
from tests.logging_layer.samples import make_records
from tests.logging_layer.test_shipper import TIMEOUT_S, end, filled, shipping, stats_once
from tests.logging_layer.test_shipping import Memory, count, ship, spool_of

HANGS = 0
EXPERIMENT = b'{"experiment": {"experiment_id": "7"}}'


@dataclass
class Moody:
    """A server that speaks MLflow's intake and answers with `status`, or not at all."""

    status: int
    traces: set[bytes] = field(default_factory=set)
    num_asked: int = 0
    uri: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            found = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(found[1]) if found else 0)
            is_intake = head.startswith("POST /v1/traces")
            self.num_asked += is_intake
            if is_intake and self.status == HANGS:
                await reader.read()
                return
            status = self.status if is_intake else 200
            if is_intake and status == 200:
                request = ExportTraceServiceRequest.FromString(body)
                scopes = [scope for one in request.resource_spans for scope in one.scope_spans]
                self.traces |= {span.trace_id for scope in scopes for span in scope.spans}
            said = f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(EXPERIMENT)}\r\n\r\n"
            writer.write(said.encode() + EXPERIMENT)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the shipper was killed meanwhile
        finally:
            writer.close()


@asynccontextmanager
async def moody(status: int) -> AsyncIterator[Moody]:
    server_side = Moody(status)
    server = await asyncio.start_server(server_side.serve, "127.0.0.1", 0)
    server_side.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield server_side
    finally:
        server.close()


def ids(url: str) -> list[str]:
    """List the calls in SQL."""
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as database:
        has_table = database.execute("select 1 from sqlite_master where name = 'calls'").fetchone()
        return [call for (call,) in database.execute("select id from calls")] if has_table else []


@pytest.mark.parametrize("status", [500, 429, 403], ids=["fails", "is busy", "forbids"])
async def test_a_mlflow_in_a_mood_holds_up_nothing_and_gets_everything_later(tmp_path: Path, status: int) -> None:
    await spool_of(tmp_path, await make_records(30))
    up = Memory("up")
    async with moody(status) as server:
        first = await ship(tmp_path, up, MlflowSink(server.uri, experiment="x"))
        left = len(list_segments(tmp_path))
        server.status = 200
        await ship(tmp_path, up, MlflowSink(server.uri, experiment="x"))

    assert f"answered {status}" in first.problems()["mlflow"]
    assert (len(up.kept), up.num_sent, left, len(server.traces)) == (30, 30, 1, 30)
    assert list_segments(tmp_path) == []


async def test_a_mlflow_that_hangs_holds_up_neither_sql_nor_the_shippers_end(
    tmp_path: Path, short_folder: Path
) -> None:
    spool = await filled(tmp_path / "spool", 30)
    await spool.aclose()
    url, socket = f"sqlite:///{tmp_path}/lamina.db", short_folder / "moody.sock"
    async with moody(HANGS) as server:
        flags = ["--spool", tmp_path / "spool", "--database", url, "--mlflow", server.uri, "--socket", socket]
        async with shipping(*flags, "--drain-s", 0.5) as process:
            client = RpcClient(socket)
            stats = await stats_once(client, "sql_shipped", 30)
            await client.aclose()
            process.terminate()
            assert await end(process) == 0
        left = len(list_segments(tmp_path / "spool"))
        server.status = 200
        async with shipping(*flags) as process:
            process.terminate()
            assert await end(process) == 0

        assert (stats["mlflow_shipped"], stats["lost"], left) == (0, 0, 1)
        assert (count(url), len(server.traces)) == (30, 30)
    assert list_segments(tmp_path / "spool") == []


async def test_what_mlflow_refuses_is_put_aside_and_elsewhere_it_is_kept(tmp_path: Path) -> None:
    await spool_of(tmp_path, await make_records(6))
    up = Memory("up")
    async with moody(400) as server:
        await ship(tmp_path, up, MlflowSink(server.uri, experiment="x"))

    assert len(up.kept) == 6
    assert len((tmp_path / "refused.mlflow").read_bytes().splitlines()) == 6
    assert list_segments(tmp_path) == []


def can_mount() -> bool:
    """Tell whether this user may have a disk of its own."""
    return bool(shutil.which("unshare")) and subprocess.run(["unshare", "-rm", "true"], check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="a small disk needs a mount namespace of one's own")
def test_a_disk_that_is_full_costs_no_record_once_the_shipper_makes_room(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from logging_layer.feed import Feed
from logging_layer.shipper import Shipper
from logging_layer.spool import Spool, SpoolLimits
from logging_layer.sql_sink import SqlSink
from tests.logging_layer.samples import make_records

async def main() -> None:
    folder, url = Path(sys.argv[1]), sys.argv[2]
    spool = Spool(folder, worker="w0", limits=SpoolLimits(retry_s=0.01))
    await spool.start()
    records = await make_records(300)
    for record in records:
        spool.append(record)
    print(await spool.flush(timeout_s=0.5), await spool.check_health())
    stopping, shipper = asyncio.Event(), Shipper(folder, [Feed(folder, SqlSink(url), max_wait_s=0.1)], sweep_s=0.05)
    shipper.start()
    shipping = asyncio.create_task(shipper.run(stopping))
    print(await spool.flush(timeout_s=60), await spool.check_health(), spool.counts())
    await spool.aclose()
    stopping.set()
    await shipping
    await shipper.aclose()

asyncio.run(main())
"""
    (tmp_path / "disk").mkdir()
    url = f"sqlite:///{tmp_path}/lamina.db"
    mount = f"mount -t tmpfs -o size=128k tmpfs {tmp_path}/disk"
    done = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c", f'{mount} && touch {tmp_path}/disk/shipper.lock && exec "$@"', "sh"),
            *(sys.executable, "-c", script, str(tmp_path / "disk"), url),
        ],
        capture_output=True,
        text=True,
        cwd=Path.cwd(),
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    full, well = done.stdout.splitlines()
    assert full == "False the call log cannot be written: No space left on device"
    assert well == "True None {'appended': 300, 'synced': 300, 'lost': 0, 'contents_dropped': 0}"
    assert count(url) == 300


class Writer:
    """A worker that spools until it is killed, and says what it has appended and when."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.appended: list[tuple[str, float]] = []
        self.has_begun = asyncio.Event()

    async def read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.endswith(b"\n"):
                call, at = line.split()
                self.appended.append((call.decode(), float(at)))
                self.has_begun.set()

    def due(self) -> set[str]:
        """Name the records that were appended a second before the end: they may not be lost."""
        return {call for call, at in self.appended if at < self.appended[-1][1] - 1.0} if self.appended else set()


async def written_for(folder: Path, lived_s: float, *, kill: signal.Signals) -> Writer:
    """Run a worker for some time, then end it."""
    command = [sys.executable, "-m", "tests.logging_layer.writer_child", str(folder)]
    writer = Writer(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
    reading = asyncio.create_task(writer.read())
    await writer.has_begun.wait()
    await asyncio.wait([reading], timeout=lived_s)
    writer.process.send_signal(kill)
    await writer.process.wait()
    await reading
    return writer


async def shipped_for(flags: list[object], lived_s: float, *, kill: signal.Signals) -> None:
    """Run a shipper for some time from its first moment on, then end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "logging_layer.shipper", *map(str, flags)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(lived_s):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(kill)
    async with asyncio.timeout(TIMEOUT_S):
        await process.wait()


async def killed_at_random(tmp_path: Path, *, rounds: int, seed: int) -> None:
    """Kill workers and shippers at random moments; whatever was acknowledged is then everywhere, once."""
    draw, url = random.Random(seed), f"sqlite:///{tmp_path}/lamina.db"
    due: set[str] = set()
    said: set[str] = set()
    async with moody(200) as server:
        flags: list[object] = ["--spool", tmp_path / "spool", "--database", url, "--mlflow", server.uri]
        flags += ["--jsonl", tmp_path / "lines", "--jsonl-file-mb", 1, "--jsonl-files", 1000, "--drain-s", 0.3]
        for _ in range(rounds):
            ends = [draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]) for _ in range(2)]
            writer, _ = await asyncio.gather(
                written_for(tmp_path / "spool", draw.uniform(0.2, 2.0), kill=ends[0]),
                shipped_for(flags, draw.uniform(0.3, 4.0), kill=ends[1]),
            )
            due |= writer.due()
            said |= {call for call, _ in writer.appended}
        async with shipping(*flags[:-1], TIMEOUT_S) as process:
            process.terminate()
            assert await end(process) == 0

    files = [*(tmp_path / "lines").glob(ROTATED), tmp_path / "lines" / FILE]
    written = [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]
    kept = ids(url)
    assert due <= set(kept)
    assert len(kept) == len(set(kept))
    assert sorted(written) == sorted(kept)
    is_sampled = sum(path.stat().st_size for path in files) > BEARABLE_BACKLOG_BYTES  # a fast machine writes that much
    assert len(server.traces) == len(kept) or (is_sampled and len(server.traces) < len(kept))
    assert list_segments(tmp_path / "spool") == []
    assert said


async def test_killed_at_any_moment_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    await killed_at_random(tmp_path, rounds=1, seed=20)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
async def test_killed_again_and_again_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    await killed_at_random(tmp_path, rounds=12, seed=seed)


async def test_a_spool_under_pressure_keeps_what_went_wrong_longest(tmp_path: Path) -> None:
    (record,) = await make_records(1)
    size = len(record.to_json()) + 10
    spool = Spool(tmp_path / "none" / "there", worker="w0", limits=SpoolLimits(max_queue_bytes=size * 10))
    for _ in range(5):
        spool.append(record)

    spool.append(record)
    plain = spool.counts()["contents_dropped"]
    spool.append(replace(record, outcome=Outcome.ERROR))

    assert (plain, spool.counts()["contents_dropped"], spool.counts()["lost"]) == (1, 1, 0)
