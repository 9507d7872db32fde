"""Many at once: all are answered, and no end, gentle or not, loses what was answered."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

import httpx
import psutil

from tests.integration.conftest import Served, until

ECHO = """
models: [{id: echo, backends: [{type: echo}]}]
cache: {semantic: {enabled: false}}
"""
Serve = Callable[..., Served]


class Crowd:
    """Clients that ask one different question after another until the server is gone; notes what was answered when."""

    def __init__(self, served: Served, *, num_clients: int) -> None:
        self.answered: list[tuple[str, float]] = []
        self._url = f"{served.url}/v1/chat/completions"
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(client,)) for client in range(num_clients)]
        for thread in self._threads:
            thread.start()

    def disperse(self) -> None:
        """Wait until every client has noticed the end."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive()

    def _ask(self, client: int) -> None:
        number = 0
        with httpx.Client(timeout=30) as http:
            while not self._is_over.is_set():
                number += 1
                message = {"role": "user", "content": f"client {client} asks {number}"}
                try:
                    reply = http.post(self._url, json={"model": "echo", "messages": [message]})
                except httpx.TransportError:
                    return
                if reply.status_code == 200:
                    self.answered.append((reply.headers["x-lamina-call"], time.monotonic()))


async def test_64_different_calls_at_once_are_all_answered(whole: Served) -> None:
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=64)) as http:

        async def ask(number: int) -> tuple[int, str, int]:
            message = {"role": "user", "content": f"Tell me about the number {number}."}
            body = {"model": "smollm2-135m-instruct", "messages": [message], "max_tokens": 8}
            reply = await http.post(f"{whole.url}/v1/chat/completions", json=body)
            return reply.status_code, reply.headers["x-lamina-cache"], reply.json()["usage"]["completion_tokens"]

        answers = await asyncio.gather(*(ask(number) for number in range(64)))

    assert {(status, cache) for status, cache, _ in answers} == {(200, "miss")}
    assert all(1 <= num_tokens <= 8 for *_, num_tokens in answers)


def test_sigterm_under_load_loses_no_record(serve: Serve) -> None:
    served = serve("--workers", "2", config=ECHO).wait_ready()
    crowd = Crowd(served, num_clients=8)
    until(lambda: len(crowd.answered) > 300)

    status = served.terminate()
    crowd.disperse()

    assert status == 0
    assert {id for id, _ in crowd.answered} <= {id for id, _ in served.records()}


def test_kill_9_of_every_process_loses_no_record_older_than_a_second(serve: Serve) -> None:
    served = serve("--workers", "2", config=ECHO).wait_ready()
    crowd = Crowd(served, num_clients=8)
    until(lambda: len(crowd.answered) > 300)
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 1.5)

    family = served.family()
    os.kill(served.process.pid, signal.SIGKILL)
    for process in family:
        process.kill()
    killed_at = time.monotonic()
    crowd.disperse()
    served.wait()
    psutil.wait_procs(family, timeout=30)

    safe = {id for id, at in crowd.answered if at < killed_at - 1.0}
    again = serve(config=ECHO).wait_ready()
    assert len(safe) > 300
    until(lambda: {id for id, _ in again.records()} >= safe)
