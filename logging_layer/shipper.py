"""The process that brings records from the spool to SQL, and from there on to MLflow's view of them.

`python -m logging_layer.shipper --spool DIR --database URL [--mlflow URI] [--sample 1.0] [--socket PATH]`

SIGTERM ends it after it has shipped what is in the spool, or after `--drain-s`; what is left stays in the spool.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logging_layer import segment
from logging_layer.chore import Chore
from logging_layer.feed import Feed
from logging_layer.shipper_parts import chores_of, feeds_of, parser
from orchestration.core.lifeline import follow_supervisor, report
from orchestration.core.memory import settle_memory
from orchestration.core.process_log import start_log
from orchestration.core.rpc import RpcServer


class Shipper:
    """Run one feed per sink, each at its own pace, delete the segments that all of them have, and see to the chores.

    One process ships a folder at a time: `start` raises `BlockingIOError` where another one does.
    """

    def __init__(
        self,
        folder: Path,
        feeds: Sequence[Feed],
        *,
        chores: Sequence[Chore] = (),
        sweep_s: float = 1.0,
        drain_s: float = 20.0,
    ) -> None:
        self._folder = folder
        self._feeds = feeds
        self._chores = chores
        self._sweep_s = sweep_s
        self._drain_s = drain_s
        self._lock: int | None = None

    def start(self) -> None:
        """Take the folder."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self._folder / "shipper.lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def run(self, stopping: asyncio.Event) -> None:
        """Ship until `stopping`, then what is left, for `drain_s` at most."""
        sweeping = asyncio.create_task(self._sweep_again(), name="sweep")
        feeding = [asyncio.create_task(feed.run(stopping), name=f"feed-{feed.name}") for feed in self._feeds]
        chores = [asyncio.create_task(chore.run(stopping), name=f"chore-{chore.name}") for chore in self._chores]
        try:
            await _first(asyncio.create_task(stopping.wait()), *feeding, *chores)
            stopping.set()  # a feed that ended by itself has failed: end the others, and say so
            done, late = await asyncio.wait(feeding, timeout=self._drain_s)
            for task in (*done, *(chore for chore in chores if chore.done())):
                task.result()
            if late:
                logging.getLogger(__name__).warning("shipper.late: %s", ", ".join(task.get_name() for task in late))
        finally:
            for task in (sweeping, *feeding, *chores):
                task.cancel()
            await asyncio.wait([sweeping, *feeding, *chores])
            self.sweep()

    async def aclose(self) -> None:
        """Close the sinks and let go of the folder."""
        for part in self._parts():
            await part.aclose()
        if self._lock is not None:
            os.close(self._lock)

    def sweep(self) -> None:
        """Delete the segments that are finished and that every sink has."""
        for path in segment.list_segments(self._folder):
            if segment.is_finished(path) and all(feed.has_all(path) for feed in self._feeds):
                path.unlink()

    def stats(self) -> dict[str, float]:
        """Give the numbers for `/metrics`: by sink `shipped`, `lag_s`, `backlog_bytes` and so on, and what was lost."""
        truth = self._feeds[0].counts
        numbers: dict[str, float] = {
            "segments": len(segment.list_segments(self._folder)),
            "spooled": truth.shipped + truth.refused,
            "lost": truth.lost_records,
            "contents_dropped": truth.lost_contents,
            "torn": truth.torn,
        }
        for feed in self._feeds:
            numbers[f"{feed.name}_shipped"] = feed.counts.shipped
            numbers[f"{feed.name}_left_out"] = feed.counts.left_out
            numbers[f"{feed.name}_refused"] = feed.counts.refused
            numbers[f"{feed.name}_lag_s"] = feed.lag_s
            numbers[f"{feed.name}_backlog_bytes"] = feed.backlog_bytes()
            numbers[f"{feed.name}_is_down"] = float(feed.problem is not None)
        for chore in self._chores:
            numbers.update({f"{chore.name}_{name}": number for name, number in chore.numbers().items()})
            numbers[f"{chore.name}_is_down"] = float(chore.problem is not None)
        return numbers

    @property
    def truth(self) -> str:
        """Name the sink that all others are views of: the first one. A node whose views wait is well all the same."""
        return self._feeds[0].name

    def problems(self) -> dict[str, str]:
        """Say what is wrong with which sink."""
        return {part.name: part.problem for part in self._parts() if part.problem is not None}

    def _parts(self) -> list[Feed | Chore]:
        return [*self._feeds, *self._chores]

    async def _sweep_again(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            await asyncio.to_thread(self.sweep)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; returns its exit status."""
    options = parser().parse_args(arguments)
    start_log(logging.WARNING, is_json=options.log_json)
    follow_supervisor(grace_s=options.drain_s + 5.0)
    try:
        asyncio.run(_serve(options))
    except (BlockingIOError, ValueError) as exc:
        said = "another shipper works on this folder" if isinstance(exc, BlockingIOError) else exc
        sys.stderr.write(f"cannot ship {options.spool}: {said}\n")
        return 1
    return 0


async def _serve(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    feeds = feeds_of(options)
    shipper = Shipper(options.spool, feeds, chores=chores_of(options, truth=feeds[0]), drain_s=options.drain_s)
    server = RpcServer(_methods(shipper))
    try:
        shipper.start()
        if options.socket is not None:
            await server.start(options.socket)
        settle_memory()
        report("ready", spool=str(options.spool), sinks=[feed.name for feed in feeds])
        await shipper.run(stopping)
    finally:
        await server.aclose()
        await shipper.aclose()


def _methods(shipper: Shipper) -> dict[str, Any]:
    async def stats(_params: Any, _payload: bytes) -> tuple[Any, bytes]:
        return shipper.stats(), b""

    async def ping(_params: Any, _payload: bytes) -> tuple[Any, bytes]:
        problems = shipper.problems()
        truth = {name: problem for name, problem in problems.items() if name == shipper.truth}
        return {"problems": truth, "views": {name: each for name, each in problems.items() if name not in truth}}, b""

    return {"stats": stats, "ping": ping}


async def _first(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks[0].cancel()


if __name__ == "__main__":
    sys.exit(main())
