"""A thousand calls of every sort through a real gateway, then every decision again from the log alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.integration.conftest import Served, until

NUM_CALLS = 1000
PAIRS = Path(__file__).parents[2] / "benchmarks" / "data" / "semcache" / "pairs.jsonl"
ALONE = "Does Flixora offer a free trial?"
COUNTRIES = ("Italy", "Spain", "Norway", "Peru", "Kenya", "Japan")
HISTORY = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
CONFIG = """
models:
  - {id: spread, backends: [{type: echo, weight: 3}, {type: echo, weight: 1}], strategy: weighted}
  - {id: near, backends: [{type: echo}, {type: echo}], strategy: prefix}
  - {id: auto, route: {by: complexity, small: spread, medium: near, large: near}}
  - {id: all-minilm-l6-v2, backends: [{type: embedder}]}
cache: {semantic: {policy: calibrated, deadline_ms: 5000, multi_turn: relaxed}}
"""


def test_replay_agrees_on_a_thousand_mixed_calls(serve: Callable[..., Served]) -> None:
    served = serve(config=CONFIG).wait_ready()
    texts = [pair[side] for pair in map(json.loads, PAIRS.read_text().splitlines()) for side in ("a", "b")]
    draw = random.Random(5)
    bodies = [
        {
            "model": draw.choice(("spread", "near", "auto")),
            "messages": [{"role": "user", "content": draw.choice(texts[:240])}],
            "temperature": draw.choice((0, 0, 0, 1)),
            "stream": draw.random() < 0.3,
        }
        for _ in range(NUM_CALLS)
    ]
    with httpx.Client(base_url=served.url, timeout=60) as client, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda body: client.post("/v1/chat/completions", json=body), bodies))
        follow_up = a_follow_up_that_stands_alone(client)
        hits, num_asked = similar_hits(client)
        raised, asked_since = a_bar_that_drift_raises(client, [*replies, *hits])
    num_calls = NUM_CALLS + 2 + num_asked + len(asked_since)
    until(lambda: len(served.records()) == num_calls)

    done = replay(served)

    assert follow_up.headers["x-lamina-cache"] == "semantic"
    assert (raised["applied_by"], raised["wrong_to_call_cost"]) == ("drift monitor", 50)
    assert asked_since[-1]["cache"]["policy_applied"] == raised["version"]
    assert {reply.status_code for reply in replies} == {200}
    assert {"exact", "semantic", "miss"} <= {reply.headers["x-lamina-cache"] for reply in replies}
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{num_calls:,} calls replayed" in done.stdout
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert rows.keys() >= {"cache", "guard", "odds", "routing", "complexity", "input_checks"}


def ask(client: httpx.Client, text: str, *earlier: dict[str, str]) -> httpx.Response:
    """Ask a question so that the semantic cache takes part."""
    messages = [*earlier, {"role": "user", "content": text}]
    return client.post("/v1/chat/completions", json={"model": "spread", "temperature": 0, "messages": messages})


def a_follow_up_that_stands_alone(client: httpx.Client) -> httpx.Response:
    """Ask a question alone, and then at the end of a conversation."""
    ask(client, ALONE)
    return ask(client, ALONE, *HISTORY)


def similar_hits(client: httpx.Client) -> tuple[list[httpx.Response], int]:
    """Ask questions, then the like of each until it is known; return the hits, and how many calls that took."""
    num_asked = len(COUNTRIES)
    for country in COUNTRIES:
        ask(client, f"What is the capital of {country}?")

    def hit(country: str) -> httpx.Response | None:
        nonlocal num_asked
        num_asked += 1
        reply = ask(client, f"What's the capital of {country}?" + " " * num_asked)  # an exact miss each time
        return reply if reply.headers["x-lamina-cache"] == "semantic" else None

    return [until(partial(hit, country)) for country in COUNTRIES], num_asked


def a_bar_that_drift_raises(client: httpx.Client, replies: list[httpx.Response]) -> tuple[dict[str, Any], list[Any]]:
    """Call every hit wrong until the bar is raised; return it, and the records of what is asked until it decides."""
    for reply in replies:
        if reply.headers["x-lamina-cache"] == "semantic":
            call = reply.headers["x-lamina-call"]
            client.post(f"/admin/calls/{call}/feedback", json={"correct": False}).raise_for_status()
    raised = until(lambda: client.get("/admin/cache/policy").json()["policies"])[0]
    records: list[Any] = []

    def is_decided_by_it() -> bool:
        reply = ask(client, f"What is the capital of France? {len(records)}")
        records.append(client.get(f"/admin/calls/{reply.headers['x-lamina-call']}").json())
        return bool(records[-1]["cache"]["policy_applied"] == raised["version"])

    until(is_decided_by_it)
    return raised, records


def test_an_applied_bar_decides_the_next_call_and_the_log_says_so(serve: Callable[..., Served]) -> None:
    served = serve(config=CONFIG.replace("calibrated", "static, threshold: 0.999")).wait_ready()
    bar = {"threshold": 0.9, "by": "ann", "reason": "a test"}
    with httpx.Client(base_url=served.url, timeout=60) as client:
        ask(client, "What is the capital of France?")
        before = until(
            lambda: (reply := ask(client, "What's the capital of France?")).headers.get("x-lamina-cache") and reply
        )
        version = client.put("/admin/cache/policy", json=bar).raise_for_status().json()["version"]
        paraphrases = iter(f"What's the capital of France?{' ' * number}" for number in range(1, 200))
        after = until(
            lambda: (reply := ask(client, next(paraphrases))).headers.get("x-lamina-threshold") == "0.9000" and reply
        )
        record = client.get(f"/admin/calls/{after.headers['x-lamina-call']}").json()

    assert before.headers["x-lamina-cache"] == "miss"
    assert (record["cache"]["policy_applied"], record["cache"]["threshold"]) == (version, 0.9)
    until(lambda: any(call == record["id"] for call, _ in served.records()))
    assert replay(served).returncode == 0


def replay(served: Served) -> subprocess.CompletedProcess[str]:
    """Run `lamina replay --all` where a gateway serves."""
    return lamina(served, "replay", "--all")


def lamina(served: Served, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `lamina` where a gateway serves."""
    return subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *words],
        cwd=served.folder,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
