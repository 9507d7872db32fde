"""WebSocket `/v1/stream` and the live calls of `lamina serve`, with two workers and with the engine."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import ClientConnection, connect

from tests.integration.conftest import Served, until

Serve = Callable[..., Served]
CONFIG = """
layers: [call_log, limits, input_checks, exact_cache, output_checks, router]
cache: {semantic: {enabled: false}}
server: {workers: 2}
models: [{id: m, backends: [{type: echo}]}]
"""


def open_socket(served: Served) -> ClientConnection:
    return connect(served.url.replace("http", "ws") + "/v1/stream", proxy=None)


def tell(client: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    """Send a request and hear its messages to the end."""
    client.send(json.dumps(fields))
    heard = [json.loads(client.recv(timeout=60))]
    while heard[-1]["type"] not in ("done", "error", "cancelled"):
        heard.append(json.loads(client.recv(timeout=60)))
    return heard


def code_of(client: ClientConnection) -> int | None:
    """Wait for the other side's close, and return its code."""
    until(lambda: client.close_code)
    return client.close_code


def live(served: Served) -> dict[str, Any]:
    found = httpx.get(f"{served.url}/admin/live", timeout=30).json()
    assert isinstance(found, dict)
    return found


def test_sockets_and_live_calls_of_two_workers(serve: Serve) -> None:
    served = serve(config=CONFIG).wait_ready()

    # 1) whichever worker is asked shows the calls of both
    def both_have_answered() -> bool:
        with open_socket(served) as client:
            assert tell(client, prompt="Hi there")[-1]["type"] == "done"
        return {call["worker"] for call in live(served)["ended"]} == {"worker-0", "worker-1"}

    until(both_have_answered)
    views = [[call["id"] for call in live(served)["ended"]] for _ in range(8)]
    assert all(view == views[0] for view in views)
    assert live(served)["workers"] == {"worker-0": True, "worker-1": True}
    pages = [httpx.get(f"{served.url}/admin/backends", timeout=30).json() for _ in range(8)]
    assert len({page["worker_pid"] for page in pages}) <= 2
    assert len({page["models"][0]["backends"][0]["attempts"] for page in pages}) == 1
    assert {page["num_workers"] for page in pages} == {2}

    # 2) the lists know them a moment later, and the page is there
    until(lambda: len(httpx.get(f"{served.url}/admin/calls", timeout=30).json()["calls"]) == len(views[0]))
    assert httpx.get(served.url, timeout=30).text.startswith("<!doctype html>")

    # 3) new settings close an idle socket, and the next one is answered by them
    idle = open_socket(served)
    (served.folder / "lamina.yaml").write_text(CONFIG.replace("id: m", "id: renamed"))
    served.process.send_signal(signal.SIGHUP)
    assert code_of(idle) == 1012
    with open_socket(served) as client:
        assert tell(client, prompt="Hi")[0]["model"] == "renamed"
        assert tell(client, prompt="Hi", model="m")[-1]["status"] == 404

    # 4) the end says so
    idle = open_socket(served)
    assert served.terminate() == 0
    assert code_of(idle) == 1001


def test_a_socket_that_vanishes_frees_its_pages(whole: Served) -> None:
    prompt = "Tell me a very long story about a lighthouse."
    with connect(whole.url.replace("http", "ws") + "/v1/stream", proxy=None) as client:
        client.send(json.dumps({"prompt": prompt, "max_tokens": 2000, "temperature": 1.5}))
        assert json.loads(client.recv(timeout=120))["type"] == "start"
        assert json.loads(client.recv(timeout=120))["type"] == "token"
        assert [call["backend"] for call in live(whole)["running"]] == ["engine"]
        assert numbers(whole)["lamina_engine_pages_used"] > 0

        client.socket.shutdown(socket.SHUT_RDWR)

        until(lambda: numbers(whole)["lamina_engine_pages_used"] == 0)
        until(lambda: live(whole)["running"] == [])


def numbers(served: Served) -> dict[str, float]:
    page = httpx.get(f"{served.url}/metrics", timeout=30).text
    return {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}
