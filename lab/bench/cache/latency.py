"""How long a hit takes, as a client of a real `lamina serve` sees it, one request at a time."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.cache.pairs import SHIPPED
from lab.bench.gateway.targets import free_port, wait_until_ready
from lab.bench.process_tree import cpu_s

_SETTINGS = """
server: {{port: {port}}}
models:
  - id: echo
    backends: [{{type: echo}}]
log: {{content: none}}
cache: {{semantic: {{shadow_share: 0, deadline_ms: 1000, index: {index}, pgvector_url: {url}}}}}
"""
_STOP_S = 60.0
_AT_ONCE = 25


@dataclass(slots=True)
class _Case:
    """What one kind of request took: times in ms, and the CPU time of all processes of the server."""

    name: str
    wanted: str
    times: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    num_otherwise: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server said: its status and the headers that tell who answered and how long the layers took."""

    status: int
    cache: str
    overhead_ms: float


def measure_latency(
    *, requests: int = 300, entries: int = 1000, index: str = "faiss", pgvector_url: str | None = None
) -> dict[str, Any]:
    """Store questions, then ask in turns: the same again, the same spelled otherwise, and others.

    The other spelling is one that no cache has seen: its text is encoded, and the entry's found among all. Raises
    `SystemExit` where the server does not answer.
    """
    questions = _questions(entries + requests)
    asked, others = questions[:entries], questions[entries:]
    with _serving(index, pgvector_url) as (port, pid):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        stored = [text for text in asked if _ask(connection, text).cache == "miss"]  # others have a near one's answer
        cases: list[tuple[_Case, Callable[[int], str]]] = [
            (_Case("exact hit", "exact"), lambda number: stored[number % len(stored)]),
            (
                _Case("semantic hit, a text never seen", "semantic"),
                lambda number: _respelled(stored[number % len(stored)]),
            ),
            (_Case("miss, answered by echo", "miss"), lambda number: others[number]),
        ]
        _measure(connection, pid, cases, requests=requests)
        connection.close()
    rows = [_row(case, requests) for case, _ in cases]
    return {
        "entries": len(stored),
        "requests": requests,
        "index": index,
        "rows": rows,
        "load_average": os.getloadavg()[0],
    }


def _measure(
    connection: http.client.HTTPConnection,
    pid: int,
    cases: list[tuple[_Case, Callable[[int], str]]],
    *,
    requests: int,
) -> None:
    """Take turns of 25 requests, so that a load from outside falls on all cases."""
    for begin in range(0, requests, _AT_ONCE):
        for case, text_of in cases:
            before = cpu_s(pid)
            for number in range(begin, min(begin + _AT_ONCE, requests)):
                begun = time.perf_counter()
                reply = _ask(connection, text_of(number))
                case.times.append((time.perf_counter() - begun) * 1e3)
                case.overheads.append(reply.overhead_ms)
                case.num_otherwise += reply.cache != case.wanted
            case.cpu_s += cpu_s(pid) - before


def _ask(connection: http.client.HTTPConnection, text: str) -> Reply:
    body = json.dumps({"model": "echo", "temperature": 0, "messages": [{"role": "user", "content": text}]})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    answer = reply.read()
    if reply.status != 200:
        raise SystemExit(f"the server answered {reply.status}: {answer[:200]!r}")
    headers = reply.headers
    return Reply(reply.status, headers["x-lamina-cache"], float(headers.get("x-lamina-overhead-ms", "nan")))


def _row(case: _Case, requests: int) -> dict[str, Any]:
    p50, p95, p99 = np.quantile(case.times, (0.5, 0.95, 0.99))
    return {
        "case": case.name,
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "layers_p50_ms": float(np.nanmedian(case.overheads)),
        "cpu_ms": case.cpu_s / requests * 1e3,
        "otherwise": case.num_otherwise,
    }


def _questions(count: int) -> list[str]:
    """Return different questions that people asked a bank."""
    lines = (SHIPPED / "banking77.jsonl").read_text(encoding="utf-8").splitlines()
    texts = dict.fromkeys(json.loads(line)["text"].strip() for line in lines)
    by_spelling = {_respelled(text): text for text in texts if text != _respelled(text)}
    return list(itertools.islice(by_spelling.values(), count))


def _respelled(text: str) -> str:
    """Write a text as one types in haste: without capitals, and without the mark at its end."""
    return text.rstrip("?!. ").lower()


@contextlib.contextmanager
def _serving(index: str, pgvector_url: str | None) -> Iterator[tuple[int, int]]:
    """Run `lamina serve` in an empty folder; gives its port and its process's id."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as name, (Path(name) / "serve.log").open("wb") as log:
        settings = _SETTINGS.format(port=port, index=index, url=json.dumps(pgvector_url))
        (Path(name) / "lamina.yaml").write_text(settings)
        command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve"]
        process = subprocess.Popen(command, cwd=name, stdout=log, stderr=log)
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/health/ready", process)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=_STOP_S)
