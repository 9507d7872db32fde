"""What clients of LiteLLM's say of the cache in the body is done, and goes no further."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.core import CacheControl, Controls
from tests.gateway.serving import CHAT, Script, ask, chat, client_of, parts_of, served


@pytest.mark.parametrize(
    ("said", "controls"),
    [
        ({"no-cache": True}, Controls(cache=CacheControl(is_no_cache=True))),
        ({"no-store": True, "no-cache": False}, Controls(cache=CacheControl(is_no_store=True))),
        ({"s-maxage": 600}, Controls(cache=CacheControl(max_age_s=600))),
        ({"namespace": "team-7", "use-cache": True}, Controls(namespace="team-7")),
        ({"use-cache": False}, Controls(cache=CacheControl(is_no_store=True))),
        (False, Controls(cache=CacheControl(is_no_store=True))),
        (True, Controls()),
        (None, Controls()),
        ({"no-cache": None}, Controls()),
    ],
)
async def test_what_the_body_says_of_the_cache_is_done(said: Any, controls: Controls) -> None:
    script = Script()
    async with client_of(parts_of(script)) as client:
        for stated in ({"cache": said}, {}):
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], extra_body=stated
            )

    assert script.calls[0].controls == controls
    assert script.calls[0].request.fields == script.calls[1].request.fields  # no key and no server sees it


async def test_headers_hold_beside_it() -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        headers = {"cache-control": "no-store", "x-lamina-threshold": "0.99"}
        await ask(port, CHAT, chat(cache={"no-cache": True}), headers=headers)

    cache = CacheControl(is_no_cache=True, is_no_store=True)
    assert script.calls[0].controls == Controls(cache=cache, threshold=0.99)


@pytest.mark.parametrize(
    ("path", "field", "asked"),
    [
        (CHAT, "messages", [{"role": "user", "content": "Hi"}]),
        ("/v1/completions", "prompt", "Hi"),
        ("/v1/embeddings", "input", "Hi"),
        ("/v1/responses", "input", "Hi"),
    ],
)
@pytest.mark.parametrize(
    ("said", "param"),
    [
        ("x", "cache"),
        ({"ttl": 60}, "cache.ttl"),
        ({"no-cache": "yes"}, "cache.no-cache"),
        ({"s-maxage": -1}, "cache.s-maxage"),
        ({"namespace": "two words"}, "cache.namespace"),
        ({"nothing": 1}, "cache.nothing"),
    ],
)
async def test_what_is_wrong_or_has_no_meaning_is_named(
    path: str, field: str, asked: Any, said: Any, param: str
) -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        reply = await ask(port, path, {"model": "tiny", field: asked, "cache": said})

    assert (reply.status, reply.error["param"], script.calls) == (400, param, [])


async def test_a_field_of_that_name_is_an_anthropic_servers_business() -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        await ask(port, "/v1/messages", chat(max_tokens=5, cache={"no-cache": True}))

    assert script.calls[0].controls == Controls()
