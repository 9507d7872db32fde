"""Bad days of the log: MLflow hangs or refuses, disks fill up, a backlog waits."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ulid import ULID

from logging_layer import segment
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.record import Outcome
from logging_layer.segment import list_segments
from logging_layer.shipper import Shipper
from logging_layer.shipper_parts import feeds_of, parser
from logging_layer.spool import Spool, SpoolLimits
from logging_layer.sql_sink import SqlSink
from orchestration.core.rpc import RpcClient
from tests.logging_layer.moody import HANGS, moody
from tests.logging_layer.samples import make_records
from tests.logging_layer.test_shipper import end, filled, shipping, stats_once
from tests.logging_layer.test_shipping import Memory, count, ship, spool_of


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
        await ship(tmp_path / "spool", SqlSink(url), MlflowSink(server.uri, experiment="x"))

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


@pytest.mark.long
async def test_a_hundred_thousand_records_drain_after_an_outage_and_the_sample_stands_for_them(tmp_path: Path) -> None:
    template = (await make_records(1))[0]
    known, data = template.id.encode(), template.to_json()
    for _ in range(20):
        lines = [segment.line_of(data.replace(known, str(ULID()).encode())) for _ in range(5000)]
        path, descriptor = segment.create(tmp_path, worker="gone")
        os.close(descriptor)
        path.write_bytes(b"".join(lines))

    async with moody(200) as server:
        options = parser().parse_args(
            ["--spool", str(tmp_path), "--database", f"sqlite:///{tmp_path}/lamina.db", "--mlflow", server.uri]
        )
        shipper, stopping = Shipper(tmp_path, feeds_of(options), drain_s=600.0), asyncio.Event()
        shipper.start()
        stopping.set()
        await shipper.run(stopping)
        await shipper.aclose()

    stats = shipper.stats()
    assert (count(options.database), shipper.problems()) == (100_000, {})
    assert stats["mlflow_shipped"] + stats["mlflow_left_out"] == 100_000
    assert len(server.traces) == stats["mlflow_shipped"] < 60_000
    assert abs(server.weight - 100_000) < 5_000  # some 10 standard deviations at these rates
    assert list_segments(tmp_path) == []
