"""A real guardrails worker for the whole session: it takes seconds to start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from validators.guardrails_client import GuardrailsClient

CHECKS: list[dict[str, Any]] = [
    {"check": "guardrails/valid-length", "options": {"max": 10}},
    {"check": "guardrails/secrets-present"},
]
ROOT = Path(__file__).resolve().parents[2]

WATCH = """
import os, socket
def _refuse(name, real):
    def call(*args, **kwargs):
        host = args[0] if name == "getaddrinfo" else args[1]
        if name == "getaddrinfo" or isinstance(host, tuple):
            with open(os.environ["FOREIGN_HOSTS"], "a") as seen:
                seen.write(f"{name} {host}\\n")
            raise OSError("no host is to be looked up")
        return real(*args, **kwargs)
    return call
socket.getaddrinfo = _refuse("getaddrinfo", socket.getaddrinfo)
class Watched(socket.socket):
    connect = _refuse("connect", socket.socket.connect)
    connect_ex = _refuse("connect_ex", socket.socket.connect_ex)
socket.socket = Watched
open(os.environ["FOREIGN_HOSTS"] + ".watched", "w").close()
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker: its socket, its status lines, and the file that names every foreign host it looked for."""

    process: subprocess.Popen[bytes]
    path: Path
    status: list[dict[str, Any]]
    foreign_hosts: Path


def start_worker(folder: Path, checks: Sequence[dict[str, Any]]) -> Worker:
    """Start a worker whose every look-up of a host is written down, and wait until it is ready or has ended."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(WATCH)
    home = folder / "home"
    home.mkdir()
    path, foreign_hosts = folder / "guard.sock", folder / "hosts"
    foreign_hosts.touch()
    search = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": search, "HOME": str(home), "FOREIGN_HOSTS": str(foreign_hosts)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "validators.worker", "--socket", str(path), "--checks", json.dumps(checks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
    status: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        status.append(json.loads(line))
        if status[-1]["event"] == "ready":
            break
    return Worker(process, path, status, foreign_hosts)


def stop_worker(worker: Worker) -> int:
    """End a worker by its lifeline and return its exit code."""
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    try:
        return worker.process.wait(timeout=60)
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()
        assert worker.process.stdout is not None
        worker.process.stdout.close()


@pytest.fixture(scope="session")
def guardrails_worker(short_folder: Path) -> Iterator[Worker]:
    """Run one worker with both checks."""
    worker = start_worker(short_folder / "guard", CHECKS)
    try:
        yield worker
    finally:
        stop_worker(worker)


@pytest.fixture
async def guardrails(guardrails_worker: Worker) -> AsyncIterator[GuardrailsClient]:
    """Give a client of the worker."""
    client = GuardrailsClient(guardrails_worker.path)
    yield client
    await client.aclose()


@pytest.fixture
def silent_socket(short_folder: Path) -> Iterator[Path]:
    """Give a socket that takes connections and never answers."""
    path = short_folder / "silent.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path
