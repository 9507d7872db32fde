"""Two whole gateways on one Valkey: entries of both caches are one's and the other's, and so is their end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.conftest import Served, two_gateways, until

CONFIG = """
models: [{{id: m, backends: [{{type: echo}}]}}]
cache: {{semantic: {{threshold: 0.9, deadline_ms: 5000, shadow_share: 0}}}}
routing: {{health_interval_s: null}}
redis: {{url: '{redis}'}}
"""
FRANCE, WHATS = "What is the capital of France?", "What's the capital of France?"
ITALY, WHATS_OF_ITALY = "What is the capital of Italy?", "What's the capital of Italy?"


@pytest.fixture
def pair(tmp_path: Path, valkey_url: str) -> Iterator[tuple[Served, Served]]:
    with two_gateways(tmp_path, CONFIG.format(redis=valkey_url)) as pair:
        yield pair


def ask(served: Served, content: str, **headers: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "temperature": 0}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def cached(served: Served, content: str) -> str:
    return ask(served, content, **{"cache-control": "only-if-cached"}).headers["x-lamina-cache"]


def test_entries_and_their_end_are_the_same_at_two_nodes(pair: tuple[Served, Served]) -> None:
    one, other = pair

    # An entry stored by one is served by the other: the same text at once, a paraphrase within a second.
    answer = ask(one, FRANCE, **{"x-lamina-cache-tags": "capitals"}).json()["choices"]
    assert cached(other, FRANCE) == "exact"
    until(lambda: cached(other, WHATS) == "semantic")
    assert ask(other, WHATS).json()["choices"] == answer
    ask(other, ITALY)
    until(lambda: cached(one, WHATS_OF_ITALY) == "semantic")

    # What is invalidated at one is served by neither, by whichever tier.
    gone = httpx.delete(f"{other.url}/admin/cache", params={"tag": "capitals"}, timeout=30)
    assert gone.json()["deleted"] == 2  # the exact entry and the semantic one
    assert [cached(node, text) for node in pair for text in (FRANCE, WHATS)] == ["miss"] * 4
    until(lambda: all(_num_rows(node) == 1 for node in pair))  # the index forgets its row at both

    # The other one dies, with every process of its own: nothing that it stored is lost.
    for process in other.family():
        process.kill()
    other.process.kill()
    other.process.wait(timeout=30)
    assert [cached(one, text) for text in (ITALY, WHATS_OF_ITALY)] == ["exact", "semantic"]


def _num_rows(served: Served) -> float:
    index = httpx.get(f"{served.url}/admin/cache", timeout=30).json()["index"]
    return float(index.get("rows", -1))
