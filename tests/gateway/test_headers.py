from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.headers import cache_control_of
from orchestration.core import Attempt, CacheControl, CacheStatus, Call, Controls, Delta, Event, Finish, Start
from orchestration.core.errors import Blocked, CacheMissed
from tests.gateway.serving import CHAT, Script, ask, chat, frames_of, parts_of, served


class Deciding:
    """A handler that decides as told before it answers."""

    def __init__(self, **cache: Any) -> None:
        self._cache = cache
        self.cost_usd: float | None = None
        self.attempt_ms = 0.0

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        for name, value in self._cache.items():
            setattr(call.notes.cache, name, value)
        call.notes.cost_usd = self.cost_usd
        if self.attempt_ms:
            call.notes.attempts.append(Attempt("tiny", "fake", duration_ms=self.attempt_ms))
        yield Start("tiny-1", "fake")
        yield Delta(text="Hello")
        yield Finish()


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_hit_says_which_entry_how_near_and_how_old(is_streamed: bool) -> None:
    handler = Deciding(
        status=CacheStatus.SEMANTIC,
        entry="01ENTRY",
        similarity=0.97123,
        threshold=0.95,
        entry_created_at=time.time() - 100,
        ttl_s=3600.0,
    )
    async with served(parts_of(handler)) as port:
        reply = await ask(port, CHAT, chat(stream=is_streamed))

    headers = reply.headers
    assert headers["x-lamina-cache"] == "semantic"
    assert headers["x-lamina-entry"] == "01entry"
    assert headers["x-lamina-similarity"] == "0.9712"
    assert headers["x-lamina-threshold"] == "0.9500"
    assert headers["x-lamina-backend"] == "fake"
    assert headers["x-lamina-cost-usd"] == "0"
    assert headers["age"] in ("100", "101")
    assert headers["cache-status"] in ("lamina; hit; ttl=3500", "lamina; hit; ttl=3499")


async def test_hit_of_a_policy_that_weighs_odds_says_them() -> None:
    handler = Deciding(status=CacheStatus.SEMANTIC, similarity=0.9, threshold=0.7, p_correct=0.98765, p_required=0.96)
    async with served(parts_of(handler)) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.headers["x-lamina-p-correct"] == "0.9877"
    assert reply.headers["x-lamina-p-required"] == "0.9600"


async def test_hit_of_the_static_policy_says_no_odds() -> None:
    async with served(parts_of(Deciding(status=CacheStatus.SEMANTIC, similarity=0.99, threshold=0.95))) as port:
        reply = await ask(port, CHAT, chat())

    assert "x-lamina-p-correct" not in reply.headers
    assert "x-lamina-p-required" not in reply.headers


async def test_call_that_shared_a_flight_is_collapsed() -> None:
    async with served(parts_of(Deciding(status=CacheStatus.EXACT, is_collapsed=True))) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.headers["x-lamina-cache"] == "exact"
    assert reply.headers["cache-status"] == "lamina; fwd=miss; collapsed"
    assert reply.headers["age"] == "0"


async def test_miss_has_no_header_of_a_hit() -> None:
    async with served(parts_of(Deciding(status=CacheStatus.MISS, similarity=0.5, threshold=0.95))) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.headers["x-lamina-cache"] == "miss"
    assert not {"age", "cache-status", "x-lamina-entry", "x-lamina-similarity"} & set(reply.headers)


async def test_cost_is_on_whole_misses_and_absent_on_streamed_ones() -> None:
    handler = Deciding(status=CacheStatus.MISS)
    handler.cost_usd = 0.00001234
    async with served(parts_of(handler)) as port:
        whole = await ask(port, CHAT, chat())
        streamed = await ask(port, CHAT, chat(stream=True))

    assert whole.headers["x-lamina-cost-usd"] == "0.00001234"
    assert "x-lamina-cost-usd" not in streamed.headers


async def test_overhead_leaves_out_what_the_backends_took() -> None:
    slow, fast = Deciding(), Deciding()
    fast.attempt_ms = 10_000.0
    async with served(parts_of(slow)) as port:
        own = await ask(port, CHAT, chat())
    async with served(parts_of(fast)) as port:
        none = await ask(port, CHAT, chat())

    assert float(own.headers["x-lamina-overhead-ms"]) > 0.0
    assert float(none.headers["x-lamina-overhead-ms"]) == 0.0


async def test_refusal_says_what_the_cache_did_and_that_repeating_is_no_use() -> None:
    async with served(parts_of(Script((CacheMissed("Not cached."),)))) as port:
        reply = await ask(port, CHAT, chat(), headers={"cache-control": "only-if-cached"})

    assert reply.status == 504
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["x-lamina-cache"] == "bypass"
    assert "x-lamina-overhead-ms" in reply.headers


async def test_blocked_answer_is_a_400_of_its_own_code() -> None:
    async with served(parts_of(Script((Blocked("Not here."),)))) as port:
        reply = await ask(port, CHAT, chat(stream=True))

    assert (reply.status, reply.error["code"]) == (400, "content_blocked")


@pytest.mark.parametrize("path", ["/health/live", "/v1/models", "/metrics", "/openapi.json", "/nowhere", "/docs"])
async def test_replies_without_a_call_have_the_headers_too(path: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, path, method="GET")

    assert reply.headers["x-lamina-cache"] == "bypass"
    assert len(reply.headers["x-lamina-call"]) == 26
    assert reply.headers["x-request-id"] == reply.headers["x-lamina-call"]
    assert float(reply.headers["x-lamina-overhead-ms"]) >= 0.0


async def test_request_id_is_echoed_and_reaches_the_call() -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        reply = await ask(port, CHAT, chat(), headers={"x-request-id": "abc-1.2:3/4"})

    assert reply.headers["x-request-id"] == "abc-1.2:3/4"
    assert script.calls[0].request_id == "abc-1.2:3/4"
    assert script.calls[0].id.lower() == reply.headers["x-lamina-call"] != "abc-1.2:3/4"


@pytest.mark.parametrize("value", ["a" * 129, "two words", "\xe9t\xe9", "tab\there"])
async def test_request_id_that_is_no_id_is_replaced_by_ours(value: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, CHAT, chat(), headers={"x-request-id": value})

    assert reply.headers["x-request-id"] == reply.headers["x-lamina-call"]


async def test_controls_reach_the_call() -> None:
    script = Script()
    headers = {
        "cache-control": "no-store, max-age=60",
        "x-lamina-threshold": "-0.5",
        "x-lamina-namespace": "team-7",
    }
    async with served(parts_of(script)) as port:
        await ask(port, CHAT, chat(), headers=headers)
        await ask(port, CHAT, chat())

    cache = CacheControl(is_no_store=True, max_age_s=60.0)
    assert script.calls[0].controls == Controls(cache=cache, threshold=-0.5, namespace="team-7")
    assert script.calls[1].controls == Controls()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-lamina-threshold", "1.01"),
        ("x-lamina-threshold", "-2"),
        ("x-lamina-threshold", "nan"),
        ("x-lamina-threshold", "high"),
        ("x-lamina-threshold", "inf"),
        ("x-lamina-namespace", "two words"),
        ("x-lamina-namespace", "n" * 129),
    ],
)
async def test_bad_control_is_a_400_that_names_the_header(name: str, value: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, CHAT, chat(), headers={name: value})

    assert reply.status == 400
    assert reply.error["param"] == name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no-cache", CacheControl(is_no_cache=True)),
        ("No-Store", CacheControl(is_no_store=True)),
        ("only-if-cached, no-cache", CacheControl(is_only_if_cached=True, is_no_cache=True)),
        ('max-age="30"', CacheControl(max_age_s=30.0)),
        ("max-age=0", CacheControl(max_age_s=0.0)),
        ("max-age=soon", CacheControl(max_age_s=0.0)),
        ("max-age", CacheControl(max_age_s=0.0)),
        ("max-age=99999999999999999999", CacheControl(max_age_s=999999999999.0)),
        ("private, stale-while-revalidate=7,,", CacheControl()),
    ],
)
def test_cache_control_is_read_as_rfc_9111_says(value: str, expected: CacheControl) -> None:
    assert cache_control_of(value) == expected


async def test_header_values_from_notes_cannot_break_the_head() -> None:
    handler = Deciding(status=CacheStatus.EXACT, entry="a\r\nx-evil: 1\xe9")
    async with served(parts_of(handler)) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.status == 200
    assert reply.headers["x-lamina-entry"] == "a??x-evil: 1?"
    assert "x-evil" not in reply.headers


async def test_stream_has_the_same_id_as_the_call() -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, CHAT, chat(stream=True))

    assert frames_of(reply.body)[0]["id"].lower() == f"chatcmpl-{reply.headers['x-lamina-call']}"
