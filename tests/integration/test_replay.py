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

import httpx

from tests.integration.conftest import Served, until

NUM_CALLS = 1000
PAIRS = Path(__file__).parents[2] / "benchmarks" / "data" / "semcache" / "pairs.jsonl"
COUNTRIES = ("France", "Spain", "Italy", "Japan", "Kenya", "Chile", "Egypt", "India", "Poland", "Cuba", "Peru", "Ghana")
CONFIG = """
models:
  - {id: spread, backends: [{type: echo, weight: 3}, {type: echo, weight: 1}], strategy: weighted}
  - {id: near, backends: [{type: echo}, {type: echo}], strategy: prefix}
  - {id: auto, route: {by: complexity, small: spread, medium: near, large: near}}
  - {id: all-minilm-l6-v2, backends: [{type: embedder}]}
cache: {semantic: {policy: calibrated, deadline_ms: 5000}}
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
    until(lambda: len(served.records()) == NUM_CALLS)

    done = replay(served)

    assert {reply.status_code for reply in replies} == {200}
    assert {"exact", "semantic", "miss"} <= {reply.headers["x-lamina-cache"] for reply in replies}
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NUM_CALLS:,} calls replayed" in done.stdout
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert rows.keys() >= {"cache", "guard", "odds", "routing", "complexity", "input_checks"}


def test_an_applied_bar_decides_the_next_call_and_the_log_says_so(serve: Callable[..., Served]) -> None:
    served = serve(config=CONFIG.replace("calibrated", "static, threshold: 0.999")).wait_ready()
    bar = {"threshold": 0.9, "by": "ann", "reason": "a test"}
    with httpx.Client(base_url=served.url, timeout=60) as client:

        def ask(text: str) -> httpx.Response:
            body = {"model": "spread", "temperature": 0, "messages": [{"role": "user", "content": text}]}
            return client.post("/v1/chat/completions", json=body)

        ask("What is the capital of France?")
        before = until(lambda: (reply := ask("What's the capital of France?")).headers.get("x-lamina-cache") and reply)
        version = client.put("/admin/cache/policy", json=bar).raise_for_status().json()["version"]
        paraphrases = iter(f"What's the capital of France?{' ' * number}" for number in range(1, 200))
        after = until(lambda: (reply := ask(next(paraphrases))).headers.get("x-lamina-threshold") == "0.9000" and reply)
        record = client.get(f"/admin/calls/{after.headers['x-lamina-call']}").json()

    assert before.headers["x-lamina-cache"] == "miss"
    assert (record["cache"]["policy_applied"], record["cache"]["threshold"]) == (version, 0.9)
    until(lambda: any(call == record["id"] for call, _ in served.records()))
    assert replay(served).returncode == 0


def test_a_bar_that_drift_raised_decides_the_next_call_and_replay_agrees(serve: Callable[..., Served]) -> None:
    served = serve(config=CONFIG.replace("calibrated", "static, threshold: 0.8, multi_turn: relaxed")).wait_ready()
    with httpx.Client(base_url=served.url, timeout=60) as client:

        def ask(text: str, *earlier: dict[str, str]) -> httpx.Response:
            messages = [*earlier, {"role": "user", "content": text}]
            body = {"model": "spread", "temperature": 0, "messages": messages}
            return client.post("/v1/chat/completions", json=body).raise_for_status()

        def paraphrased(country: str) -> httpx.Response | None:
            reply = ask(f"What's the capital of {country}?")
            return reply if reply.headers["x-lamina-cache"] == "semantic" else None

        for country in COUNTRIES:
            ask(f"What is the capital of {country}?")
        hits = [until(partial(paraphrased, country)) for country in COUNTRIES]
        ask("Does Flixora offer a free trial?")
        history = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."})
        follow_up = ask("Does Flixora offer a free trial?", *history)
        for hit in hits:
            wrong = client.post(f"/admin/calls/{hit.headers['x-lamina-call']}/feedback", json={"correct": False})
            wrong.raise_for_status()
        newest = until(lambda: client.get("/admin/cache/policy").json()["policies"])[0]
        texts = iter(f"What is the capital of Norway?{' ' * number}" for number in range(200))
        after = until(lambda: (reply := ask(next(texts))).headers.get("x-lamina-threshold") == "0.9000" and reply)
        record = client.get(f"/admin/calls/{after.headers['x-lamina-call']}").json()

    assert (newest["applied_by"], newest["threshold"]) == ("drift monitor", 0.9)
    assert newest["reason"].startswith("drift: ")
    assert (record["cache"]["policy_applied"], record["cache"]["threshold"]) == (newest["version"], 0.9)
    assert follow_up.headers["x-lamina-cache"] == "semantic"
    until(lambda: any(call == record["id"] for call, _ in served.records()))
    done = replay(served)
    assert done.returncode == 0, done.stdout + done.stderr


def replay(served: Served) -> subprocess.CompletedProcess[str]:
    """Run `lamina replay --all` where a gateway serves."""
    return subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", "replay", "--all"],
        cwd=served.folder,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
