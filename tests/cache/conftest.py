"""What the tests of encoder, owner and semantic tier share: the exported model, and owners as real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cache import compiled
from cache.encoder import Encoder
from gateway import model_store

NAME = "all-minilm-l6-v2"


@pytest.fixture(scope="session")
def compiled_base() -> Path:
    """Give the folder where exported models are kept between runs, as a user's are."""
    return model_store.cache_folder() / "compiled"


@pytest.fixture(scope="session")
def exported(embedding_model: Path, compiled_base: Path) -> Callable[[str], Path]:
    """Give the exported model's folder by precision, exporting it where it is not there yet (25 s, once)."""

    def folder(precision: str) -> Path:
        return asyncio.run(
            compiled.ensure_compiled(embedding_model, base=compiled_base, name=NAME, precision=precision)
        )

    return folder


@pytest.fixture(scope="session")
def encoder(exported: Callable[[str], Path]) -> Encoder:
    return Encoder(exported("int8"))


@dataclass(slots=True)
class OwnerProcess:
    """An owner that runs."""

    process: subprocess.Popen[bytes]
    socket: Path
    ready: dict[str, Any]

    def stop(self) -> int:
        """End it gracefully; returns its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def end(self) -> None:
        """Have it gone, whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(timeout=30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


RunOwner = Callable[..., OwnerProcess]
StartOwner = Callable[..., OwnerProcess]


@pytest.fixture(scope="session")
def run_owner(
    short_folder: Path, embedding_model: Path, exported: Callable[[str], Path], compiled_base: Path
) -> RunOwner:
    """Start an owner and wait until it is ready."""
    exported("int8")

    def start(*flags: str, name: str, redis: str) -> OwnerProcess:
        socket = short_folder / name
        command = [sys.executable, "-m", "cache.owner", "--socket", str(socket), "--model", str(embedding_model)]
        command += ["--redis", redis, "--compiled", str(compiled_base), *flags]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        output: list[dict[str, Any]] = []
        for line in process.stdout:
            output.append(json.loads(line))
            if output[-1]["event"] == "ready":
                return OwnerProcess(process, socket, ready=output[-1])
        raise AssertionError(f"the owner ended with status {process.wait()} before it was ready: {output}")

    return start


@pytest.fixture
def start_owner(run_owner: RunOwner, valkey_url: str) -> Iterator[StartOwner]:
    """Start owners on the test's Valkey; every one is ended with the test, however that left it."""
    started: list[OwnerProcess] = []

    def start(*flags: str, name: str = "cache.sock", redis: str = valkey_url) -> OwnerProcess:
        started.append(run_owner(*flags, name=name, redis=redis))
        return started[-1]

    yield start
    for owner in started:
        owner.end()


@pytest.fixture(scope="session")
def one_owner(run_owner: RunOwner, valkey_socket: Path) -> Iterator[OwnerProcess]:
    """Give an owner that tests share which need no partition of their own."""
    owner = run_owner(name="one-for-all.sock", redis=f"unix://{valkey_socket}")
    yield owner
    owner.end()
