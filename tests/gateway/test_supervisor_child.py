from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.refusals import StartRefused
from gateway.supervisor.child import Child, ChildSpec, ChildState

PREAMBLE = """
import sys, time, os, signal
from orchestration.core.lifeline import follow_supervisor, report
follow_supervisor()
"""
SERVE = "report('progress', what='loading', done=1, total=2); report('ready', pid=os.getpid())\nsignal.pause()"


@dataclass
class Notes:
    """Hear a child and let tests wait for what they want to see."""

    messages: list[str] = field(default_factory=list)
    progress: list[tuple[str, float, float | None]] = field(default_factory=list)
    ended_pids: list[int] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def progressed(self, child: Child, what: str, done: float, total: float | None) -> None:
        self.progress.append((what, done, total))
        self._changed.set()

    def changed(self, child: Child, message: str | None) -> None:
        if message is not None:
            self.messages.append(message)
        self._changed.set()

    def ended(self, child: Child, pid: int) -> None:
        self.ended_pids.append(pid)
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def make(tmp_path: Path, notes: Notes) -> Callable[..., Child]:
    def build(code: str, *, quiet_s: float = 20.0, stop_s: float = 10.0) -> Child:
        spec = ChildSpec(
            name="fake",
            command=(sys.executable, "-c", PREAMBLE + code),
            environment=dict(os.environ),
            log=tmp_path / "fake.log",
            quiet_s=quiet_s,
            stop_s=stop_s,
        )
        return Child(spec, notes)

    return build


async def test_a_child_reports_its_progress_and_becomes_ready(make: Callable[..., Child], notes: Notes) -> None:
    child = make(SERVE)

    child.start()
    await child.wait_ready()

    assert child.state is ChildState.READY
    assert child.ready == {"pid": child.pid}
    assert notes.progress == [("loading", 1, 2)]
    await child.stop()
    assert child.state is ChildState.STOPPED
    assert child.pid is None


async def test_what_a_child_warns_of_is_said_to_whoever_watches(make: Callable[..., Child], notes: Notes) -> None:
    child = make("report('warning', message='no compiler'); report('ready')\nsignal.pause()")

    child.start()
    await child.wait_ready()

    assert notes.messages == ["fake: no compiler"]
    await child.stop()


async def test_a_child_that_is_killed_is_started_again(make: Callable[..., Child], notes: Notes) -> None:
    child = make(SERVE)
    child.start()
    await child.wait_ready()
    first = child.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    await notes.until(lambda: child.state is ChildState.READY and child.pid != first)

    assert notes.ended_pids == [first]
    assert child.restarts == 1
    assert notes.messages == ["fake ended (SIGKILL); starting it again in 0.1 s", "fake is back"]
    await child.stop()


async def test_the_wait_grows_while_a_child_keeps_dying(
    make: Callable[..., Child], notes: Notes, tmp_path: Path
) -> None:
    child = make(
        f"""
flag = {str(tmp_path / "was-here")!r}
if os.path.exists(flag): sys.exit(3)
open(flag, "w").close()
report("ready")
"""
    )

    child.start()
    await notes.until(lambda: child.restarts == 3)

    assert [message.rpartition(" in ")[2] for message in notes.messages] == ["0.1 s", "0.2 s", "0.4 s"]
    await child.stop()


async def test_a_first_start_that_fails_gives_the_last_words_and_is_not_tried_again(
    make: Callable[..., Child], notes: Notes
) -> None:
    child = make("sys.stderr.write('loading\\nno such model\\n'); sys.exit(4)")

    child.start()
    with pytest.raises(StartRefused, match=r"fake did not start: no such model \(exit status 4"):
        await child.wait_ready()

    assert child.restarts == 0
    await child.stop()


async def test_a_child_that_says_nothing_for_too_long_is_ended(make: Callable[..., Child]) -> None:
    child = make("signal.pause()", quiet_s=0.5)

    child.start()
    with pytest.raises(StartRefused, match="SIGKILL"):
        await child.wait_ready()

    await child.stop()


async def test_a_child_that_ignores_sigterm_is_killed_after_its_time(make: Callable[..., Child], notes: Notes) -> None:
    child = make("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE + "\nsignal.pause()", stop_s=0.3)
    child.start()
    await child.wait_ready()

    await child.stop()

    assert notes.messages == ["fake did not end within 0.3 s and was killed"]
    assert child.pid is None


async def test_a_child_that_waits_for_its_next_start_can_be_stopped(make: Callable[..., Child], notes: Notes) -> None:
    child = make("report('ready')")
    child.start()
    await notes.until(lambda: child.state is ChildState.WAITING)

    await child.stop()

    assert child.state is ChildState.STOPPED


async def test_prints_of_a_library_are_no_status(make: Callable[..., Child]) -> None:
    child = make("print('hello'); print('[1]'); print('{}'); print('x' * 300000)\n" + SERVE)

    child.start()
    await child.wait_ready()

    assert child.state is ChildState.READY
    await child.stop()


async def test_a_large_log_is_set_aside(make: Callable[..., Child], tmp_path: Path) -> None:
    (tmp_path / "fake.log").write_bytes(b"x" * (10 * 1024 * 1024 + 1))
    child = make(SERVE)

    child.start()
    await child.wait_ready()
    await child.stop()

    assert (tmp_path / "fake.log").stat().st_size == 0
    assert (tmp_path / "fake.log.1").exists()
