"""Workers and shippers killed at random moments: what was acknowledged is then everywhere, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from logging_layer.jsonl_sink import FILE, ROTATED
from logging_layer.segment import list_segments
from logging_layer.shipper_parts import BEARABLE_BACKLOG_BYTES
from tests.logging_layer.moody import moody
from tests.logging_layer.test_shipper import TIMEOUT_S, end, shipping


def ids(url: str) -> list[str]:
    """List the calls in SQL."""
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as database:
        has_table = database.execute("select 1 from sqlite_master where name = 'calls'").fetchone()
        return [call for (call,) in database.execute("select id from calls")] if has_table else []


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
