"""Approximate indexes of large partitions, built aside while look-ups go on."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from cache.approximate import ApproximateIndex
from cache.index import Build
from cache.partitions import Partitions

logger = logging.getLogger(__name__)

_NICENESS = 10


class Builder:
    """Build what partitions need, one at a time, in a thread that gives way to look-ups.

    A partition that has grown is looked at within `interval_s`.
    """

    def __init__(self, partitions: Partitions, *, interval_s: float = 1.0) -> None:
        self._partitions = partitions
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index-build", initializer=_give_way)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look after the partitions."""
        self._task = asyncio.create_task(self._build_forever(), name="index-build")

    async def aclose(self) -> None:
        """Stop; a build under way is run to its end, and dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _build_forever(self) -> None:
        while True:
            for index, build in self._partitions.plan_builds():
                built = await asyncio.get_running_loop().run_in_executor(self._thread, _run, build)
                index.install(build, built)
                logger.info(
                    "index.built rows=%d recall=%.3f probed=%d",
                    len(build.numbers),
                    built.measured.recall,
                    built.measured.num_probed,
                )
            await asyncio.sleep(self._interval_s)


def _run(build: Build) -> ApproximateIndex:
    return build.run()


def _give_way() -> None:
    """Lower this thread's own priority, which Linux keeps for each thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
