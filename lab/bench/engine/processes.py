"""Servers of the benchmark's own: started with a log, watched until they answer, ended by their process id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class ServerFailed(Exception):
    """A server did not start; the message says which, and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class Process:
    """A running server."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Return the id of the process that was started."""
        return self.popen.pid

    def check(self) -> None:
        """Raise `ServerFailed` where it has ended."""
        if self.popen.poll() is not None:
            raise ServerFailed(f"{self.name} ended with status {self.popen.returncode}:\n{self.tail()}")

    def tail(self, *, num_lines: int = 12) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])


def start(name: str, command: Sequence[str], *, folder: Path, environment: Sequence[str] = ()) -> Process:
    """Start a command in a folder, with `NAME=VALUE`s of its own; raises `ServerFailed` where it cannot be run.

    It leads a session of its own, so that its whole family can be ended, and a Ctrl-C here is for us alone.
    """
    log = folder / "server.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            popen = subprocess.Popen(
                ["env", *environment, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise ServerFailed(f"{name} cannot be started: {exc}") from exc
    return Process(name, popen, log)


async def stop(process: Process, *, grace_s: float = 40.0) -> None:
    """End a server and whatever it left behind."""
    if process.popen.poll() is None:
        process.popen.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.popen.wait, grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the session that was started for it
    await asyncio.to_thread(process.popen.wait)


async def wait_until(process: Process, host_port: tuple[str, int], path: str, *, timeout_s: float) -> None:
    """Wait until a GET of `path` answers 200; raises `ServerFailed` where the server ends or takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        process.check()
        with contextlib.suppress(OSError, TimeoutError):
            if (await get(*host_port, path, timeout_s=2.0))[0] == 200:
                return
        await asyncio.sleep(0.2)
    raise ServerFailed(f"{process.name} was not ready after {timeout_s:g} s:\n{process.tail()}")


async def get(host: str, port: int, path: str, *, timeout_s: float) -> tuple[int, str]:
    """Return the status and body of a GET; raises `OSError` or `TimeoutError`."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            # HTTP/1.0: the body ends with the connection, and is never cut in chunks.
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.close()
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(f"no HTTP answer from {host}:{port}")
    return int(words[1]), body.decode(errors="replace")


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
