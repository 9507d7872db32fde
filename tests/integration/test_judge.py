"""A judge behind a real upstream: checked, then asked off the path; what it approves is served, and replayed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import Served, until
from tests.integration.test_replay import lamina, replay

PAIRS = Path(__file__).parents[2] / "benchmarks" / "data" / "semcache" / "pairs.jsonl"
FRANCE, NEAR = "What is the capital of France?", "Which city serves as the capital of France?"
CONFIG = """
models:
  - id: chat
    backends: [{{type: openai_compatible, base_url: "{url}", model: chat-there}}]
    price: {{input_per_1m: 1, output_per_1m: 4}}
  - {{id: judge, backends: [{{type: openai_compatible, base_url: "{url}", model: judge-there}}]}}
  - {{id: all-minilm-l6-v2, backends: [{{type: embedder}}]}}
cache:
  semantic:
    threshold: 0.98
    deadline_ms: 5000
    shadow_share: 0
    judge: {{model: judge, per_minute: 60000, min_similarity: 0.7}}
"""


class Upstream(BaseHTTPRequestHandler):
    """Answer as two models: one that judges by the pairs' own labels, and one whose answer to NEAR is cut off."""

    same = frozenset(
        frozenset({pair["a"], pair["b"]})
        for pair in map(json.loads, PAIRS.read_text(encoding="utf-8").splitlines())
        if pair["same_answer"]
    ) | {frozenset({FRANCE, NEAR})}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = body["messages"][-1]["content"]
        if body["model"] == "judge-there":
            text = "SAME" if frozenset(json.loads(last).values()) in self.same else "DIFFERENT"
        else:
            text = f"An answer to: {last}"
        finish = "length" if last == NEAR else "stop"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
        reply = {"id": "u", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        packed = json.dumps({**reply, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(packed)))
        self.end_headers()
        self.wfile.write(packed)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


def test_an_alias_of_a_checked_judge_is_served_counted_quarantined_and_replayed(
    serve: Callable[..., Served], upstream: str
) -> None:
    served = serve(config=CONFIG.format(url=upstream)).wait_ready()
    with httpx.Client(base_url=served.url, timeout=60) as client:

        def ask(text: str) -> httpx.Response:
            body = {"model": "chat", "temperature": 0, "messages": [{"role": "user", "content": text}]}
            return client.post("/v1/chat/completions", json=body).raise_for_status()

        def standing() -> dict[str, Any]:
            found = client.get("/admin/cache/judge").json()
            assert isinstance(found, dict)
            return found

        def hit(text: str) -> httpx.Response | None:
            reply = ask(text)
            return reply if reply.headers["x-lamina-cache"] == "semantic" else None

        before = standing()
        checked = lamina(served, "judge", "check", "--limit", "100")
        until(lambda: standing()["in_force"])
        ask(FRANCE)
        alias = until(lambda: hit(NEAR))
        record = client.get(f"/admin/calls/{alias.headers['x-lamina-call']}").json()
        metrics = client.get("/metrics").text
        wrong = client.post(f"/admin/calls/{record['id']}/feedback", json={"correct": False}).json()
        after = ask(NEAR)

    assert (before["in_force"], before["reason"]) == (
        False,
        "it was not checked as it is now; run: lamina judge check",
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "100 of 100 pairs right" in checked.stdout
    assert (record["cache"]["is_alias"], record["extra"]["semantic"]) == (True, "alias")
    assert alias.headers["cache-status"].endswith("; detail=alias")
    assert alias.json()["choices"][0]["message"]["content"] == f"An answer to: {FRANCE}"
    assert 'lamina_cache_hits_total{kind="alias"} 1.0' in metrics
    assert 'lamina_cache_judge_total{outcome="approved"} 1.0' in metrics
    assert "lamina_cache_judge_in_force 1.0" in metrics
    assert wrong["num_quarantined"] == 2  # the entry, and the alias that led there
    assert after.headers["x-lamina-cache"] == "miss"
    until(lambda: any(call == after.headers["x-lamina-call"] for call, _ in served.records()))
    done = replay(served)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.startswith("│ alias") for line in done.stdout.splitlines())
