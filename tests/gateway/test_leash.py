from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two generations: the program and one that it started itself, both writing their ids, both deaf where asked.
PROGRAM = """
import os, signal, subprocess, sys
if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open({path!r}, "w") as file: file.write(f"{{os.getpid()}} {{grandchild.pid}}")
os.rename({path!r}, {path!r} + ".done")
signal.pause()
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def leashes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for leash in started:
        leash.kill()
        leash.wait()
        assert leash.stdin is not None
        leash.stdin.close()


def start(
    leashes: list[subprocess.Popen[bytes]], *command: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    leash = subprocess.Popen([sys.executable, "-m", "gateway.leash", *options, "--", *command], stdin=subprocess.PIPE)
    leashes.append(leash)
    return leash


def start_program(leashes: list[subprocess.Popen[bytes]], path: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    leash = start(leashes, sys.executable, "-c", PROGRAM.format(path=str(path), deaf=False))
    done = path.with_name(path.name + ".done")
    while not done.exists():
        assert leash.poll() is None
    return leash, [int(pid) for pid in done.read_text().split()]


def ends(pid: int, timeout_s: float = 15.0) -> bool:
    """Wait for the end of a process that may not be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def test_the_program_and_what_it_started_end_when_stdin_closes(
    leashes: list[subprocess.Popen[bytes]], fifo: Path
) -> None:
    leash, pids = start_program(leashes, fifo)

    assert leash.stdin is not None
    leash.stdin.close()

    assert all(ends(pid) for pid in pids)
    assert leash.wait(timeout=30) == 128 + signal.SIGTERM


def test_the_program_ends_on_sigterm(leashes: list[subprocess.Popen[bytes]], fifo: Path) -> None:
    leash, pids = start_program(leashes, fifo)

    leash.terminate()

    assert all(ends(pid) for pid in pids)


def test_the_program_ends_when_the_leash_is_killed(leashes: list[subprocess.Popen[bytes]], fifo: Path) -> None:
    leash, pids = start_program(leashes, fifo)

    leash.kill()

    assert ends(pids[0])
    os.kill(pids[1], signal.SIGKILL)  # a generation further no kernel helps


def test_what_the_program_started_ends_with_it(leashes: list[subprocess.Popen[bytes]], fifo: Path) -> None:
    leash, pids = start_program(leashes, fifo)

    os.kill(pids[0], signal.SIGKILL)

    assert ends(pids[1])
    assert leash.wait(timeout=30) == 128 + signal.SIGKILL


def test_the_exit_status_is_the_programs(leashes: list[subprocess.Popen[bytes]]) -> None:
    assert start(leashes, sys.executable, "-c", "raise SystemExit(7)").wait(timeout=30) == 7


def test_a_second_program_waits_for_the_lock_of_the_first(
    leashes: list[subprocess.Popen[bytes]], fifo: Path, tmp_path: Path
) -> None:
    lock = ("--lock", str(tmp_path / "lock"))
    mark = tmp_path / "mark"
    code = PROGRAM.format(path=str(fifo), deaf=False)
    first = start(leashes, sys.executable, "-c", code, options=lock)
    while not fifo.with_name("pids.done").exists():
        assert first.poll() is None
    second = start(leashes, sys.executable, "-c", f"open({str(mark)!r}, 'w').close()", options=lock)

    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(timeout=0.5)
    assert not mark.exists()
    first.terminate()

    assert second.wait(timeout=30) == 0
    assert mark.exists()
