"""The engine as a process of somebody else's, reached over TCP: `engine.connect`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.conftest import Served

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def engine_address(language_model: Path) -> Iterator[str]:
    """Run an engine on a free port; give its address."""
    command = [sys.executable, "-m", "backends.engine", "--listen", "tcp://127.0.0.1:0", "--model", str(language_model)]
    engine = subprocess.Popen(
        [*command, "--name", MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert engine.stdout is not None
    assert engine.stdin is not None
    try:
        lines = map(json.loads, engine.stdout)
        yield next(line["address"] for line in lines if line["event"] == "ready")
    finally:
        engine.stdin.close()  # its lifeline
        assert engine.wait(timeout=30) == 0
        engine.stdout.close()


def test_an_engine_elsewhere_answers_and_none_is_started_here(
    serve: Callable[..., Served], engine_address: str
) -> None:
    config = f"{{engine: {{connect: '{engine_address}'}}, cache: {{semantic: {{enabled: false}}}}}}"
    served = serve(config=config).wait_ready()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}

    reply = httpx.post(f"{served.url}/v1/chat/completions", json={**body, "temperature": 0}, timeout=60)

    assert "Paris" in reply.json()["choices"][0]["message"]["content"]
    assert reply.headers["x-lamina-backend"] == "engine"
    assert "engine" not in served.status()["children"]
