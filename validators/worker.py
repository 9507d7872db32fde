"""The guardrails worker: the process that holds guardrails-ai, so that nobody else has to.

    python -m validators.worker --socket PATH --checks '[{"check": "guardrails/valid-length", "options": {"max": 9}}]'

It loads the checks it is told of before it is ready, and others of the table when they are first asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.core.lifeline import follow_supervisor, report
from orchestration.core.process_log import start_log
from orchestration.core.rpc import RpcServer
from validators.check import Verdict
from validators.guardrails_table import checked_options

if TYPE_CHECKING:
    from validators.guardrails_adapter import Adapter

MAX_IN_FLIGHT = 256
MAX_ADAPTERS = 64
MAX_TIMEOUT_S = 30.0
STUCK_AFTER_S = 60.0
MAX_MEMORY_MB = 2048
"""A worker with the validators of the table takes 150 MB."""

logger = logging.getLogger(__name__)


class CheckTimeout(Exception):
    """A validator did not come back within its time."""

    code = "timeout"


class ValidatorFailed(Exception):
    """A validator raised; its words stay here, they may quote the text."""

    code = "validator_failed"


class Bench:
    """Run validators on one thread, one text at a time: their libraries keep state of their own.

    At most `MAX_IN_FLIGHT` texts wait; each waits for as long as its caller does. At most `MAX_ADAPTERS` validators
    are kept.
    """

    def __init__(self, *, max_memory_mb: int = MAX_MEMORY_MB) -> None:
        self._max_memory_mb = max_memory_mb
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="validator")
        self._adapters: dict[str, Adapter] = {}
        self._busy_since: float | None = None

    def load(self, name: str, options: Mapping[str, Any]) -> Adapter:
        """Build a validator, or return it where it is built; raises `ValueError`."""
        from validators.guardrails_adapter import Adapter, silence  # 3.5 s: not before the process is set up

        key = json.dumps([name, options], sort_keys=True)
        if key not in self._adapters:
            if len(self._adapters) >= MAX_ADAPTERS:
                raise ValueError(f"{MAX_ADAPTERS} validators are loaded already")
            silence()
            self._adapters[key] = Adapter(name, options)
        return self._adapters[key]

    async def check(self, params: Any, payload: bytes) -> tuple[Any, bytes]:
        """Answer `{"check", "options", "timeout_s"}` and a text with `{"outcome", "spans", "reason"}`."""
        job = functools.partial(self._run, params["check"], params["options"], payload.decode())
        timeout_s = min(float(params["timeout_s"]), MAX_TIMEOUT_S)
        try:
            async with asyncio.timeout(timeout_s):
                verdict = await asyncio.get_running_loop().run_in_executor(self._thread, job)
        except TimeoutError as exc:
            raise CheckTimeout(f"{params['check']} took longer than {timeout_s:g} s") from exc
        spans = [[span.start, span.end, span.replacement] for span in verdict.spans]
        return {"outcome": verdict.outcome, "spans": spans, "reason": verdict.reason}, b""

    async def check_health(self, params: Any, payload: bytes) -> tuple[Any, bytes]:
        """Answer with the number of validators loaded."""
        return {"loaded": len(self._adapters)}, b""

    def close(self) -> None:
        """Stop taking texts; end the process at once where a validator still runs: its thread cannot be stopped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._busy_since is not None:
            os._exit(0)

    async def watch(self) -> None:
        """End the process when a validator hangs or leaks: nothing else stops it; a new one is started."""
        while True:
            await asyncio.sleep(1.0)
            if self._busy_since is not None and time.monotonic() - self._busy_since > STUCK_AFTER_S:
                logger.error("a validator has not come back for %g s; the worker ends", STUCK_AFTER_S)
                os._exit(70)
            if (memory_mb := _memory_mb()) > self._max_memory_mb:
                logger.error("the validators hold %d MB, more than %d; the worker ends", memory_mb, self._max_memory_mb)
                os._exit(70)

    def _run(self, name: str, options: Mapping[str, Any], text: str) -> Verdict:
        self._busy_since = time.monotonic()
        try:
            adapter = self.load(name, options)
            try:
                return adapter.check(text)
            except Exception as exc:  # a stranger's code may raise anything; the one who asked gets a failure
                raise ValidatorFailed(f"{name} raised {type(exc).__name__}") from exc
        finally:
            self._busy_since = None


def _memory_mb() -> int:
    """Return the memory that this process holds, in MB."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return num_pages * resource.getpagesize() // (1024 * 1024)


async def serve(path: Path, checks: Sequence[Mapping[str, Any]], *, max_memory_mb: int = MAX_MEMORY_MB) -> None:
    """Load the checks, listen on `path` until SIGTERM or SIGINT, and answer."""
    begun = time.monotonic()
    bench = Bench(max_memory_mb=max_memory_mb)
    for spec in checks:  # a wrong one is named before the seconds that the import takes
        checked_options(spec["check"], spec.get("options") or {})
    report("progress", what="guardrails checks", done=0, total=len(checks))
    for done, spec in enumerate(checks, start=1):
        bench.load(spec["check"], spec.get("options") or {})
        report("progress", what="guardrails checks", done=done, total=len(checks))
    server = RpcServer({"check": bench.check, "health": bench.check_health}, max_in_flight=MAX_IN_FLIGHT)
    await server.start(path)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    watch = asyncio.create_task(bench.watch(), name="stuck-validator-watch")
    report("ready", checks=[spec["check"] for spec in checks], start_s=round(time.monotonic() - begun, 3))
    await ended.wait()
    watch.cancel()
    await server.aclose()
    bench.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker; returns 2, with one line on stderr, for checks that cannot be loaded."""
    parser = argparse.ArgumentParser(prog="python -m validators.worker", description="Serve guardrails-ai checks.")
    parser.add_argument("--socket", type=Path, required=True, help="the Unix socket to listen on")
    parser.add_argument("--checks", type=json.loads, default=[], help="the checks to load first, as a JSON list")
    parser.add_argument("--max-memory-mb", type=int, default=MAX_MEMORY_MB, help="end, to be started anew, above this")
    parser.add_argument("--log-json", action="store_true", help="write this process's own log as JSON lines")
    parsed = parser.parse_args(arguments)
    start_log(logging.INFO, is_json=parsed.log_json)
    follow_supervisor()
    try:
        asyncio.run(serve(parsed.socket, parsed.checks, max_memory_mb=parsed.max_memory_mb))
    except ValueError as exc:
        sys.stderr.write(f"the guardrails worker cannot start: {exc}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
