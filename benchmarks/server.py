"""A real `lamina serve` of the benchmark's own, and the CPU time of its whole process tree."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from lab.bench.process_tree import cpu_s

SETTINGS = """
models:
  - id: echo
    backends: [{type: echo}]
  - id: smollm2-135m-instruct
    backends: [{type: engine}]
  - id: all-minilm-l6-v2
    backends: [{type: embedder}]
log: {content: none}
"""


class Server:
    """A running gateway: its URL and what its processes have used."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._pid = pid

    def cpu_s(self) -> float:
        """Add up the CPU seconds of the supervisor and of everything below it."""
        return cpu_s(self._pid)


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Start `lamina serve` in an empty folder on a free port; stop it by its pid."""
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as folder:
        (Path(folder) / "lamina.yaml").write_text(SETTINGS)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, stdout=sys.stderr)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield Server(url, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"lamina serve ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health/ready", timeout=2):
            return
        time.sleep(0.2)
    raise SystemExit(f"{url} was not ready after {timeout_s:g} s")
