"""`lamina serve` for real: started in an empty folder, asked over HTTP, ended by its pid."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

READY = re.compile(r"ready on (http://\S+)")
START_TIMEOUT_S = 240.0


def until(is_so: Callable[[], Any], *, timeout_s: float = 120.0) -> Any:
    """Ask again and again until the answer is true, and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = is_so()
        if found:
            return found
        assert time.monotonic() < deadline, f"not so within {timeout_s:g} s"
        time.sleep(0.05)


class Served:
    """One `lamina serve` in a folder; `lines` is what it has said so far."""

    def __init__(self, folder: Path, *arguments: str, prefix: Sequence[str] = (), **environment: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.url = ""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAMINA_")}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--port", "0", *arguments],
            cwd=folder,
            env={**clean, "PYTHONPATH": os.getcwd(), **environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> Served:
        """Wait for the ready line; fails with what was said instead."""
        assert self._is_ready.wait(START_TIMEOUT_S), self.lines
        assert self.url, "\n".join(self.lines)
        return self

    def status(self) -> dict[str, Any]:
        """Return what the supervisor wrote last."""
        found = json.loads((self.folder / ".lamina" / "status.json").read_text())
        assert isinstance(found, dict)
        return found

    def child(self, name: str) -> dict[str, Any]:
        """Return one child's pid, state and restarts."""
        found = self.status()["children"][name]
        assert isinstance(found, dict)
        return found

    def is_ready(self) -> bool:
        """Tell whether every part answers."""
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=30).status_code == 200
        except httpx.HTTPError:
            return False

    def kill_child(self, name: str) -> Callable[[], bool]:
        """Kill a child as the kernel would, and return what tells whether another one has taken its place."""
        before = self.child(name)
        victim = psutil.Process(before["pid"])
        # Valkey and MLflow are on a leash: the program itself is the leash's child.
        inner = victim.children() if name in {"valkey", "mlflow"} else []
        (inner[0] if inner else victim).kill()

        def is_back() -> bool:
            now = self.child(name)
            return bool(now["restarts"] > before["restarts"] and now["state"] == "ready")

        return is_back

    def family(self) -> list[psutil.Process]:
        """List every process that the supervisor started, and what those started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def records(self) -> list[tuple[str, str]]:
        """List (id, outcome) of the calls in SQL; none before the first one was shipped."""
        with contextlib.closing(sqlite3.connect(self.folder / ".lamina" / "lamina.db")) as database:
            has_table = database.execute("select 1 from sqlite_master where name = 'calls'").fetchone()
            return database.execute("select id, outcome from calls").fetchall() if has_table else []

    def num_chats(self) -> int:
        """Count the chat calls that came to it, by its own metrics."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        counted = [line for line in lines if line.startswith("lamina_requests_total{") and "chat" in line]
        return int(sum(float(line.rpartition(" ")[2]) for line in counted))

    def terminate(self) -> int:
        """End it as a service manager does, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end."""
        status = self.process.wait(timeout=180)
        self._reader.join(timeout=30)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if found := READY.search(line):
                self.url = found.group(1)
                self._is_ready.set()
        self._is_ready.set()


@contextlib.contextmanager
def two_gateways(folder: Path, config: str) -> Iterator[tuple[Served, Served]]:
    """Serve twice with the same settings and the same callers, each in a folder of its own, at the same time."""
    started: list[Served] = []
    try:
        for name in ("one", "other"):
            place = folder / name
            (place / ".lamina").mkdir(mode=0o700, parents=True)
            (place / "lamina.yaml").write_text(config)
            # Callers are the same at both only with the same key.
            (place / ".lamina" / "tenant.key").write_text("5" * 64)
            started.append(Served(place))
        yield started[0].wait_ready(), started[1].wait_ready()
    finally:
        for served in started:
            if served.process.poll() is None:
                served.process.terminate()
        for served in started:
            served.wait()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start `lamina serve` in this test's folder, as often as the test likes; what still runs is ended."""
    started: list[Served] = []

    def start(*arguments: str, config: str | None = None, **environment: str) -> Served:
        if config is not None:
            (tmp_path / "lamina.yaml").write_text(config)
        served = Served(tmp_path, *arguments, **environment)
        started.append(served)
        return served

    yield start
    for served in started:
        if served.process.poll() is None:
            served.terminate()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve with the defaults, engine and caches and all, once for the session."""
    served = Served(tmp_path_factory.mktemp("whole"))
    try:
        yield served.wait_ready()
    finally:
        if served.process.poll() is None:
            assert served.terminate() == 0
