from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.logging_layer.samples import Mlflow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run this folder's tests of MLflow last: it takes its time to start, and the others run meanwhile."""
    folder = Path(__file__).parent
    places = [index for index, item in enumerate(items) if folder in item.path.parents]
    ours = sorted((items[index] for index in places), key=_wants_mlflow)
    for index, item in zip(places, ours, strict=True):
        items[index] = item


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """Give the URL of an empty database."""
    import psycopg2

    connection = psycopg2.connect(postgres_server)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS calls, labels, cache_policies, judge_checks, lamina_log_version")
    connection.close()
    return postgres_server.replace("postgresql://", "postgresql+psycopg2://", 1)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of an empty database of each sort."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/lamina.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(scope="session", autouse=True)
def mlflow_starting(request: pytest.FixtureRequest) -> Iterator[Mlflow | None]:
    """Start MLflow at once, where a test of this session wants it: it takes 20 s, and others run meanwhile."""
    if not any(_wants_mlflow(item) for item in request.session.items):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="lt-mlflow-", ignore_cleanup_errors=True) as folder:
        port = _free_port()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
                *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
                *("--artifacts-destination", f"{folder}/artifacts"),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a second process of 250 MB that nothing here uses
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield Mlflow(f"http://127.0.0.1:{port}")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


@pytest.fixture(scope="session")
def mlflow(mlflow_starting: Mlflow | None) -> Mlflow:
    """Give a real MLflow server that answers."""
    assert mlflow_starting is not None
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{mlflow_starting.uri}/health", timeout=30).status_code == 200:
                return mlflow_starting
        except httpx.TransportError:
            time.sleep(0.1)
    raise TimeoutError("MLflow does not answer after 120 s")


def _wants_mlflow(item: pytest.Item) -> bool:
    return "mlflow" in getattr(item, "fixturenames", ())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
