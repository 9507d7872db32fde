"""The shipper as the process that it is: started, asked, ended and killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from logging_layer.segment import list_segments
from logging_layer.spool import Spool
from orchestration.core.rpc import RpcClient
from tests.logging_layer.samples import Mlflow, make_record, make_records
from tests.logging_layer.test_shipping import count

TIMEOUT_S = 60.0


@asynccontextmanager
async def shipping(*flags: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a shipper that says it is ready; kill it where the test did not end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "logging_layer.shipper", *map(str, flags)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert json.loads(await process.stdout.readline())["event"] == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def end(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(TIMEOUT_S):
        return await process.wait()


async def filled(folder: Path, count: int) -> Spool:
    spool = Spool(folder, worker="w0")
    await spool.start()
    for record in await make_records(count):
        spool.append(record)
    return spool


async def stats_once(client: RpcClient, name: str, value: float) -> dict[str, Any]:
    """Ask for the numbers until one of them is as wanted."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            stats, _ = await client.call("stats", timeout_s=TIMEOUT_S)
            if stats[name] == value:
                return dict(stats)


async def test_calls_become_as_many_rows_and_traces_and_sigterm_waits_for_them(
    mlflow: Mlflow, tmp_path: Path, short_folder: Path
) -> None:
    spool = await filled(tmp_path / "spool", 12)
    url = f"sqlite:///{tmp_path}/lamina.db"
    flags = ["--spool", tmp_path / "spool", "--database", url, "--mlflow", mlflow.uri, "--experiment", "process"]
    async with shipping(*flags, "--drain-s", 50) as process:
        for record in await make_records(8):
            spool.append(record)
        await spool.aclose()
        process.terminate()

        assert await end(process) == 0

    assert count(url) == 20
    assert len(mlflow.traces("process")) == 20
    assert list_segments(tmp_path / "spool") == []


async def test_the_socket_tells_what_was_shipped_and_what_is_wrong(tmp_path: Path, short_folder: Path) -> None:
    spool = await filled(tmp_path / "spool", 7)
    socket = short_folder / "ship.sock"
    url = f"sqlite:///{tmp_path}/lamina.db"
    flags = ["--spool", tmp_path / "spool", "--database", url, "--mlflow", "http://127.0.0.1:1", "--socket", socket]
    async with shipping(*flags) as process:
        client = RpcClient(socket)
        stats = await stats_once(client, "sql_shipped", 7)
        stats = await stats_once(client, "mlflow_is_down", 1)
        pong, _ = await client.call("ping", timeout_s=TIMEOUT_S)
        await client.aclose()
        process.terminate()
        assert await end(process) == 0

    assert (stats["sql_shipped"], stats["mlflow_shipped"], stats["lost"]) == (7, 0, 0)
    assert stats["mlflow_backlog_bytes"] > 0
    assert "MLflow cannot be reached" in pong["views"]["mlflow"]
    assert pong["problems"] == {}
    assert len(list_segments(tmp_path / "spool")) == 1
    await spool.aclose()


async def test_a_killed_shipper_goes_on_where_it_was(tmp_path: Path, short_folder: Path) -> None:
    spool = await filled(tmp_path / "spool", 300)
    url = f"sqlite:///{tmp_path}/lamina.db"
    flags = ["--spool", tmp_path / "spool", "--database", url]
    async with shipping(*flags) as process:
        process.send_signal(signal.SIGKILL)
        await end(process)
    spool.append(await make_record())
    await spool.aclose()

    async with shipping(*flags) as process:
        process.terminate()
        assert await end(process) == 0

    assert count(url) == 301


async def test_the_end_of_the_supervisor_is_the_end_of_the_shipper(tmp_path: Path) -> None:
    spool = await filled(tmp_path / "spool", 3)
    await spool.aclose()
    url = f"sqlite:///{tmp_path}/lamina.db"
    async with shipping("--spool", tmp_path / "spool", "--database", url) as process:
        assert process.stdin is not None
        process.stdin.close()

        assert await end(process) == 0

    assert count(url) == 3


async def test_a_second_shipper_says_so_in_one_line_and_flags_may_stand_in_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lamina.db"
    flags = tmp_path / "flags"
    flags.write_text(f"--spool={tmp_path}/spool\n--database={url}\n")
    async with shipping(f"@{flags}"):
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "logging_layer.shipper", f"@{flags}"),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await second.communicate()

    assert second.returncode == 1
    assert said.decode() == f"cannot ship {tmp_path}/spool: another shipper works on this folder\n"
