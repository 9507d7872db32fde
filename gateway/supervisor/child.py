"""One child process: started by exec, followed by its status lines, started again when it dies, ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gateway.refusals import StartRefused

STABLE_S = 30.0
"""A child that lived this long starts its back-off anew."""
MAX_LOG_BYTES = 10 * 1024 * 1024
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 10.0
_POLL_S = 0.05


class ChildState(StrEnum):
    """Where a child stands."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start and end one child.

    `answers` is asked until it is true where the program gives no status of its own. `quiet_s` bounds how long a
    starting child may say nothing; `stop_s` how long it may take to end after SIGTERM before it is killed. The
    first start fails for good after `start_tries` ends before the child was ready.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    pass_fds: tuple[int, ...] = ()
    answers: Callable[[], Awaitable[bool]] | None = None
    quiet_s: float = 180.0
    stop_s: float = 10.0
    is_restarted: bool = True
    start_tries: int = 1


class Watcher(Protocol):
    """Hear what happens to children."""

    def progressed(self, child: Child, what: str, done: float, total: float | None) -> None:
        """Hear how far a starting child is."""
        ...

    def changed(self, child: Child, message: str | None) -> None:
        """Hear that a child's state changed; `message` is what a person should read about it."""
        ...

    def ended(self, child: Child, pid: int) -> None:
        """Hear that a child's process ended, wanted or not."""
        ...


@dataclass(slots=True)
class Child:
    """A child and its process of the moment. `start` owns a task until `stop` is awaited."""

    spec: ChildSpec
    watcher: Watcher
    state: ChildState = ChildState.STARTING
    restarts: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    """The fields of the last ready line."""
    _process: asyncio.subprocess.Process | None = None
    _task: asyncio.Task[None] | None = None
    _first: asyncio.Future[None] | None = None
    _is_stopping: bool = False
    _log_start: int = 0

    @property
    def name(self) -> str:
        """Name the child as the status and the log do."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Return the process's id while there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process and keep it running until `stop`."""
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(), name=f"child-{self.name}")

    async def wait_ready(self) -> None:
        """Wait for the first ready line; raises `StartRefused` with the child's last words where it ends before."""
        assert self._first is not None, "start() comes first"
        await asyncio.shield(self._first)

    async def wait_ended(self) -> None:
        """Wait until a child that is not restarted has ended."""
        assert self._task is not None, "start() comes first"
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL after `stop_s`."""
        self._is_stopping = True
        if self._task is None:
            return
        if self._process is None:
            self._task.cancel()
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=self.spec.stop_s)
        if not done:
            self.watcher.changed(self, f"{self.name} did not end within {self.spec.stop_s:g} s and was killed")
            self.kill()
            await asyncio.wait([self._task], timeout=5.0)
        self.state = ChildState.STOPPED
        self.watcher.changed(self, None)

    def restart(self) -> None:
        """Ask the process to end in order; another one is started then."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once and for good."""
        self._is_stopping = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _keep(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._is_stopping:
            begun = time.monotonic()
            code = await self._run_once()
            if self._is_stopping or self._refused_to_start(code) or not self.spec.is_restarted:
                return
            if time.monotonic() - begun > STABLE_S:
                wait_s = _FIRST_WAIT_S
            self.restarts += 1
            self._enter(ChildState.WAITING, f"{self.name} ended ({_word(code)}); starting it again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _run_once(self) -> int:
        """Run the process from start to end and return its exit status."""
        self._enter(ChildState.STARTING, None)
        with _open_log(self.spec.log) as log:
            self._log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=dict(self.spec.environment),
                pass_fds=self.spec.pass_fds,
                start_new_session=True,  # Ctrl-C in the terminal is the supervisor's to hear
            )
        self._process = process
        if self._is_stopping:
            self._signal(signal.SIGTERM)
        self.watcher.changed(self, None)
        follower = asyncio.create_task(self._follow(process), name=f"status-{self.name}")
        try:
            code = await process.wait()
        finally:
            follower.cancel()
            await asyncio.wait([follower])
            self._process = None
        self.watcher.ended(self, process.pid)
        return code

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Read the status until it ends; kill a starting child that says nothing for too long."""
        assert process.stdout is not None
        if self.spec.answers is not None:
            await self._poll(process)
        while True:
            is_starting = self.state is ChildState.STARTING
            try:
                async with asyncio.timeout(self.spec.quiet_s if is_starting else None):
                    line = await process.stdout.readline()
            except TimeoutError:
                self._signal(signal.SIGKILL)
                return
            except ValueError:  # a line over the reader's limit is no status of ours
                continue
            if not line:
                return
            self._hear(line)

    async def _poll(self, process: asyncio.subprocess.Process) -> None:
        assert self.spec.answers is not None
        deadline = time.monotonic() + self.spec.quiet_s
        while not await self.spec.answers():
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
                return
            await asyncio.sleep(_POLL_S)
        self._become_ready({})

    def _hear(self, line: bytes) -> None:
        try:
            status = json.loads(line)
        except ValueError:
            status = None
        if not isinstance(status, dict):
            return  # a stray print of a library; the log is for those
        event = status.pop("event", None)
        if event == "ready":
            self._become_ready(status)
        elif event == "progress":
            self.watcher.progressed(self, str(status.get("what", "")), status.get("done", 0), status.get("total"))
        elif event == "warning":
            self.watcher.changed(self, f"{self.name}: {status.get('message', '')}")

    def _become_ready(self, fields: dict[str, Any]) -> None:
        assert self._first is not None
        self.ready = fields
        is_first = not self._first.done()
        if is_first:
            self._first.set_result(None)
        self._enter(ChildState.READY, None if is_first else f"{self.name} is back")

    def _refused_to_start(self, code: int) -> bool:
        """End the first start with the child's last words; later deaths are answered by another start."""
        assert self._first is not None
        if self._first.done() or self.restarts + 1 < self.spec.start_tries:
            return False
        words = last_line(self.spec.log, since=self._log_start)
        self._first.set_exception(StartRefused(f"{self.name} did not start: {words} ({_word(code)}; {self.spec.log})"))
        # Whoever waits will raise it; nobody does where an earlier part has failed already.
        self._first.exception()
        self._enter(ChildState.STOPPED, None)
        return True

    def _enter(self, state: ChildState, message: str | None) -> None:
        self.state = state
        self.watcher.changed(self, message)


def last_line(log: Path, *, since: int) -> str:
    """Return the last line that says something in a log, from the byte `since` on."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[BinaryIO]:
    """Open a log for appending, the previous one kept beside it where it grew large."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.rename(path.with_suffix(".log.1"))
    with path.open("ab") as file:
        file.seek(0, os.SEEK_END)
        yield file


def _word(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit status {code}"
