"""A real `lamina serve` of the benchmark's own, and the CPU time of its whole process tree."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

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


def cpu_s(root: int) -> float:
    """Add up the CPU seconds of a process and of everything below it."""
    return sum(_cpu_ticks(pid) for pid in _tree(root)) / os.sysconf("SC_CLK_TCK")


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


def _tree(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(parents.get(pid, ()))
    return found


def _cpu_ticks(pid: int) -> int:
    with contextlib.suppress(OSError):
        fields = _stat(pid)
        return int(fields[11]) + int(fields[12])
    return 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
