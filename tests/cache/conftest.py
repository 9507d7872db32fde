"""What the tests of encoder, owner and semantic tier share: the exported model, and owners as real processes."""

from __future__ import annotations

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
        import asyncio  # beside its one use

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
    output: list[dict[str, Any]]

    def stop(self) -> int:
        """End it gracefully; returns its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=10)


StartOwner = Callable[..., OwnerProcess]


@pytest.fixture
def start_owner(
    short_folder: Path, embedding_model: Path, exported: Callable[[str], Path], compiled_base: Path, valkey_url: str
) -> Iterator[StartOwner]:
    """Start owners on the test's Valkey; every one is stopped at the end, however the test left it."""
    exported("int8")
    started: list[OwnerProcess] = []

    def start(*flags: str, name: str = "cache.sock", redis: str = valkey_url) -> OwnerProcess:
        socket = short_folder / name
        command = [sys.executable, "-m", "cache.owner", "--socket", str(socket), "--model", str(embedding_model)]
        command += ["--redis", redis, "--compiled", str(compiled_base), *flags]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        output: list[dict[str, Any]] = []
        for line in process.stdout:
            output.append(json.loads(line))
            if output[-1]["event"] == "ready":
                break
        else:
            raise AssertionError(f"the owner ended with status {process.wait()} before it was ready: {output}")
        started.append(OwnerProcess(process, socket, ready=output[-1], output=output))
        return started[-1]

    yield start
    for owner in started:
        if owner.process.poll() is None:
            owner.process.send_signal(signal.SIGCONT)
            owner.process.kill()
        owner.process.wait(timeout=10)
        for pipe in (owner.process.stdin, owner.process.stdout):
            if pipe is not None:
                pipe.close()
