"""Routing for real: two workers, and an upstream that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.integration.conftest import Served, until

Serve = Callable[..., Served]
CONFIG = """
server: {workers: 2}
cache: {semantic: {enabled: false}, exact: {enabled: false}}
routing: {health_interval_s: null}
models:
  - id: m
    retries: 0
    backends: [{type: openai_compatible, base_url: 'http://127.0.0.1:9/v1'}, {type: echo}]
"""


def standing(client: httpx.Client) -> tuple[int, dict[str, Any]]:
    """Return a worker's pid, and how it sees the upstream that is not there."""
    page: dict[str, Any] = client.get("/admin/backends?scope=worker").json()
    return page["worker_pid"], page["models"][0]["backends"][0]


def test_what_one_worker_sees_of_a_dead_upstream_the_other_knows(serve: Serve) -> None:
    served = serve(config=CONFIG).wait_ready()
    replies: list[httpx.Response] = []
    with httpx.Client(base_url=served.url, timeout=30) as one:  # a connection stays with its worker
        here, _ = standing(one)

        def ask() -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": f"call {len(replies)}"}]}
            replies.append(one.post("/v1/chat/completions", json=body))

        def is_known_there() -> bool:
            ask()
            with httpx.Client(base_url=served.url, timeout=30) as other:
                there, seen = standing(other)
            return there != here and seen["cooled_until"] is not None and seen["failures"] == 0

        until(is_known_there)
        record = one.get(f"/admin/calls/{replies[0].headers['x-lamina-call']}").json()

    assert {(reply.status_code, reply.headers["x-lamina-backend"]) for reply in replies} == {(200, "echo")}
    order = record["extra"]["routing"]["orders"][0]
    assert (order["strategy"], len(order["options"])) == ("round_robin", 2)
