"""What the gateway's benchmark runs: the stand-in for a provider, a `lamina serve` of its own, and other gateways."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.bench.gateway.client import Target

MASTER_KEY = "sk-lamina-bench-master"
_SETTINGS = """
server: {{port: {port}, workers: {workers}}}
keys: {{master: {master}}}
models:
  - id: mock
    backends: [{{type: openai_compatible, base_url: "{upstream}", model: mock, api_key: sk-upstream}}]
    price: {{input_per_1m: 0.15, output_per_1m: 0.60}}
  - id: paced
    backends: [{{type: openai_compatible, base_url: "{upstream}", model: paced, api_key: sk-upstream}}]
cache: {{semantic: {{enabled: false}}}}
"""
_LIMITS = ("--rpm", "100000000", "--tpm", "100000000000", "--parallel", "100000", "--budget-usd", "1000000000")
_LAMINA = (sys.executable, "-c", "from gateway.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: where, and the process at the root of its tree."""

    name: str
    target: Target
    pid: int


@contextlib.contextmanager
def mock_upstream() -> Iterator[Running]:
    """Run the stand-in."""
    command = [sys.executable, "-m", "lab.bench.gateway.mock_upstream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "a pipe"
        port = int(process.stdout.readline())
        try:
            yield Running("no gateway", Target(f"http://127.0.0.1:{port}/v1"), process.pid)
        finally:
            process.terminate()


@contextlib.contextmanager
def lamina(upstream: str, folder: Path, *, workers: int = 1) -> Iterator[Running]:
    """Run `lamina serve` in a folder, and make a key with every limit, so that all of them are counted."""
    port = free_port()
    settings = _SETTINGS.format(upstream=upstream, port=port, master=MASTER_KEY, workers=workers)
    (folder / "lamina.yaml").write_text(settings)
    made = subprocess.run([*_LAMINA, "keys", "create", "bench", *_LIMITS], cwd=folder, capture_output=True, check=True)
    headers = {"authorization": f"Bearer {made.stdout.decode().strip()}"}
    url = f"http://127.0.0.1:{port}"
    with _running([*_LAMINA, "serve"], folder) as process:
        wait_until_ready(f"{url}/health/ready", process)
        yield Running("lamina", Target(f"{url}/v1", headers), process.pid)


@contextlib.contextmanager
def litellm(command: str, upstream: str, folder: Path) -> Iterator[Running]:
    """Run LiteLLM's proxy by a command, to which its settings and its port are added."""
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n"
        + "".join(
            f"  - model_name: {name}\n    litellm_params:\n"
            f"      {{model: openai/{name}, api_base: '{upstream}', api_key: sk-local}}\n"
            for name in ("mock", "paced")
        )
    )
    words = [*shlex.split(command), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with _running([*words, "--num_workers", "1"], folder, environment) as process:
        wait_until_ready(f"http://127.0.0.1:{port}/health/liveliness", process)
        headers = {"authorization": "Bearer sk-local"}
        yield Running("litellm", Target(f"http://127.0.0.1:{port}/v1", headers), process.pid)


@contextlib.contextmanager
def portkey(command: str, upstream: str, folder: Path) -> Iterator[Running]:
    """Run Portkey's gateway by a command, to which its port is added."""
    port = free_port()
    with _running([*shlex.split(command), f"--port={port}"], folder, {"PORT": str(port)}) as process:
        wait_until_ready(f"http://127.0.0.1:{port}/", process)
        headers = {
            "authorization": "Bearer sk-local",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": upstream,
        }
        yield Running("portkey", Target(f"http://127.0.0.1:{port}/v1", headers), process.pid)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(url: str, process: subprocess.Popen[bytes], timeout_s: float = 180.0) -> None:
    """Wait until a URL answers below 300; raises `SystemExit` where the process ends, or does not answer in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"what should serve {url} ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    raise SystemExit(f"{url} was not ready after {timeout_s:g} s")


@contextlib.contextmanager
def _running(
    command: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a folder, its words in a file there; stop it by its pid."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
