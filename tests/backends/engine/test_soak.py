"""Half an hour of everything at once on a real engine whose memory is short: nothing leaks, nothing stalls."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway import model_store
from tests.backends.engine.link_client import LinkClient

logger = logging.getLogger(__name__)

NUM_WORKERS = 6
STALL_S = 600.0  # a request that gives nothing for so long counts as stalled, however busy the machine is
WARM_UP_SHARE = 0.25
MAX_GROWTH_MB = 48.0
FLAGS = (
    "--kv-memory-mb", "24", "--max-num-seqs", "12", "--max-waiting", "24", "--swap-memory-mb", "6",
    "--admission", "greedy", "--threads", "2",
)  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What the clients did and saw."""

    deadline_s: float
    ends: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    slowest_s: float = 0.0


class Client:
    """One worker's life: connections that come and go, each with a few requests at once."""

    def __init__(self, address: str, *, seed: int, tally: Tally) -> None:
        self._address = address
        self._draw = random.Random(seed)
        self._tally = tally
        self._texts = [[random.Random(text).randrange(5, 49_000) for _ in range(160)] for text in range(6)]

    async def run(self) -> None:
        """Go on until the time is over."""
        while time.monotonic() < self._tally.deadline_s:
            client = await LinkClient.connect(self._address)
            try:
                await self._use(client)
            finally:
                await client.aclose()
            await asyncio.sleep(self._draw.expovariate(4.0))  # an arrival, not a wait for something

    async def _use(self, client: LinkClient) -> None:
        """Send a burst, abort some of it, and either read it to its end or hang up in the middle."""
        live = {request_id: self._draw.random() < 0.2 for request_id in range(self._draw.choice([1, 1, 1, 2, 3, 12]))}
        for request_id in live:
            await client.submit(request_id, self._prompt(), max_tokens=self._draw.randint(1, 60), salt=self._salt())
        hangs_up = self._draw.random() < 0.15
        while live:
            began_s = time.monotonic()
            message = await client.receive(timeout_s=STALL_S)
            self._tally.slowest_s = max(self._tally.slowest_s, time.monotonic() - began_s)
            if message["op"] == "refused":
                del live[message["id"]]
                self._tally.ends[message["code"]] += 1
            for request_id, tokens, _, finish, _ in message["rows"] if message["op"] == "step" else ():
                await self._read(client, request_id, tokens, finish, live)
            if hangs_up:
                self._tally.ends["lost"] += len(live)
                return

    async def _read(
        self, client: LinkClient, request_id: int, tokens: list[int], finish: str | None, live: dict[int, bool]
    ) -> None:
        if request_id not in live:
            return
        self._tally.num_tokens += len(tokens)
        is_aborted = finish is None and live[request_id] and self._draw.random() < 0.1
        if is_aborted:
            await client.send(op="abort", id=request_id)
        if finish is not None or is_aborted:
            del live[request_id]
            self._tally.ends[finish or "aborted"] += 1

    def _prompt(self) -> list[int]:
        shared = self._draw.choice(self._texts)[: self._draw.choice([0, 7, 40, 100, 160])]
        return [*shared, *(self._draw.randrange(5, 49_000) for _ in range(self._draw.randint(1, 90)))]

    def _salt(self) -> str:
        return self._draw.choice(["", "", "", "other"])


async def _start(address: str, model: Path, log: Path, *flags: str) -> asyncio.subprocess.Process:
    compiled = model_store.cache_folder() / "compiled"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "backends.engine", "--listen", address, "--model", str(model), "--name", "soak",
            "--compiled", str(compiled), *FLAGS, *flags,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(600):
        while json.loads(await process.stdout.readline() or b"{}").get("event") != "ready":
            assert process.returncode is None, log.read_text()
    return process


def _memory_mb(process_id: int) -> float:
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the engine is gone")


async def _memory_after_warm_up(process_id: int, *, wait_s: float) -> float:
    await asyncio.sleep(wait_s)
    return _memory_mb(process_id)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("flags", [(), ("--overlap",)], ids=["plain", "overlap"])
async def test_a_soak_ends_with_its_books_in_order_flat_memory_and_no_stall(
    flags: tuple[str, ...],
    language_model: Path,
    short_folder: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    length_s = float(pytestconfig.getoption("--soak-minutes")) * 60 / 2  # each of the two modes gets half
    address, log = f"unix://{short_folder}/soak{len(flags)}.sock", tmp_path / "engine.log"
    process = await _start(address, language_model, log, *flags)
    tally = Tally(time.monotonic() + length_s)
    async with asyncio.TaskGroup() as group:
        warm = group.create_task(_memory_after_warm_up(process.pid, wait_s=length_s * WARM_UP_SHARE))
        for seed in range(NUM_WORKERS):
            group.create_task(Client(address, seed=seed, tally=tally).run())
    grown_mb = _memory_mb(process.pid) - warm.result()
    watcher = await LinkClient.connect(address)
    stats = await watcher.stats_until(lambda stats: stats["running"] + stats["waiting"] == 0, timeout_s=STALL_S)
    await watcher.send(op="check")
    checked = await watcher.receive()
    await watcher.aclose()
    process.terminate()
    status = await process.wait()

    figures = {
        "minutes": length_s / 60, "ends": dict(tally.ends), "tokens": tally.num_tokens,
        "slowest_s": round(tally.slowest_s, 2), "warm_mb": round(warm.result(), 1), "grown_mb": round(grown_mb, 1),
        "stats": stats,
    }  # fmt: skip
    logger.info("soak %s", json.dumps(figures))
    assert checked == {"op": "checked", "fault": None}
    assert stats["pages_used"] == 0
    assert grown_mb < MAX_GROWTH_MB
    assert tally.ends["length"] > 0
    assert "error" not in tally.ends
    assert "engine.stall" not in log.read_text()
    assert status == 0
