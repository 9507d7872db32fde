"""`/admin/cache` over HTTP, on workers wired as they are, over one real Valkey."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.serving import CHAT, Reply, chat
from tests.gateway.whole import Whole, whole

SETTINGS = """
models:
  - {{id: m, backends: [{{type: echo}}], price: {{input_per_1m: 1.0, output_per_1m: 2.0}}}}
  - {{id: other, backends: [{{type: echo}}]}}
cache: {{semantic: {{enabled: false}}}}
validators: {{input: []}}
routing: {{health_interval_s: null}}
redis: {{url: "{redis}"}}
{more}
"""


@pytest.fixture
async def nodes(tmp_path: Path, valkey_url: str) -> AsyncIterator[tuple[Whole, Whole]]:
    """Give two nodes on one Valkey whose callers are the same."""
    async with AsyncExitStack() as stack:
        started = []
        for name in ("one", "other"):
            folder = tmp_path / name
            (folder / ".lamina").mkdir(mode=0o700, parents=True)
            (folder / ".lamina" / "tenant.key").write_text("5" * 64)
            started.append(await stack.enter_async_context(whole(folder, SETTINGS.format(redis=valkey_url, more=""))))
        yield started[0], started[1]


async def say(node: Whole, text: str, *, model: str = "m", tags: str | None = None, key: str = "k") -> Reply:
    headers = {"authorization": f"Bearer {key}", **({"x-lamina-cache-tags": tags} if tags else {})}
    body = chat(messages=[{"role": "user", "content": text}], model=model)
    return await node.ask(CHAT, body, headers=headers)


async def cached(node: Whole, text: str, **options: Any) -> str:
    return (await say(node, text, **options)).headers["x-lamina-cache"]


async def admin(node: Whole, method: str, path: str = "", **params: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.request(method, f"{node.url}/admin/cache{path}", params=params)


async def test_a_tags_entries_are_gone_at_both_nodes_and_others_are_not(nodes: tuple[Whole, Whole]) -> None:
    one, other = nodes
    await say(one, "about prices", tags="prices, v1")
    await say(one, "about weather", tags="weather")
    assert await cached(other, "about prices") == "exact"

    reply = await admin(one, "DELETE", tag="prices", by="ann", reason="new price list")

    assert (reply.status_code, reply.json()) == (200, {"deleted": 1})
    assert await cached(other, "about prices") == "miss"
    assert await cached(other, "about weather") == "exact"


async def test_one_entry_is_shown_and_deleted_by_the_id_that_its_hits_name(nodes: tuple[Whole, Whole]) -> None:
    one, other = nodes
    await say(one, "hello", tags="x")
    entry = (await say(other, "hello")).headers["x-lamina-entry"]

    shown = (await admin(other, "GET", f"/entries/{entry}")).json()
    deleted = await admin(other, "DELETE", f"/entries/{entry}")
    again = await admin(one, "DELETE", f"/entries/{entry}")

    assert (shown["entry"], shown["model"], shown["tags"], shown["kind"]) == (entry, "m", ["x"], "exact")
    assert "hello" in shown["answer"]
    assert deleted.json() == {"deleted": 1}
    assert (again.status_code, again.json()["error"]["code"]) == (404, "entry_not_found")
    assert await cached(one, "hello") == "miss"


async def test_the_overview_counts_by_model_and_tenant_with_hits_and_savings(nodes: tuple[Whole, Whole]) -> None:
    one, other = nodes
    for model, key in (("m", "a"), ("m", "b"), ("other", "a")):
        await say(one, "hello", model=model, key=key)
    for _ in range(3):
        assert await cached(other, "hello", key="a") == "exact"
    async with asyncio.timeout(60):
        while (view := (await admin(one, "GET")).json())["totals"]["hits"] < 3:  # noqa: ASYNC110 (over HTTP)
            await asyncio.sleep(0.02)

    assert view["totals"]["entries"] == 3
    assert {name: sums["entries"] for name, sums in view["by_model"].items()} == {"m": 2, "other": 1}
    assert sorted(sums["entries"] for sums in view["by_tenant"].values()) == [1, 2]
    assert view["totals"]["saved_usd"] > 0.0
    assert (view["index"], view["bounds"]["max_entries"]) == ({"state": "off"}, 200_000)


async def test_entries_are_listed_page_by_page_and_by_what_they_have_in_common(nodes: tuple[Whole, Whole]) -> None:
    one, _ = nodes
    for number in range(5):
        await say(one, f"text {number}", tags=f"t{number % 2}", model="m" if number < 4 else "other")

    pages = [(await admin(one, "GET", "/entries", limit=2, offset=at)).json()["entries"] for at in (0, 2, 4)]
    some = (await admin(one, "GET", "/entries", tag="t0", model="m")).json()["entries"]

    assert [len(page) for page in pages] == [2, 2, 1]
    assert len({entry["entry"] for page in pages for entry in page}) == 5
    assert [entry["tags"] for entry in some] == [["t0"], ["t0"]]


WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("DELETE", "", {}, "tag"),
    ("DELETE", "", {"tag": "a,b"}, "tag"),
    ("DELETE", "", {"tag": ""}, "tag"),
    ("DELETE", "", {"model": "x" * 300}, "model"),
    ("DELETE", "", {"all": "perhaps"}, "all"),
    ("GET", "/entries", {"limit": 0}, "limit"),
    ("GET", "/entries", {"offset": -1}, "offset"),
    ("GET", "/entries/nobody", {}, "entry_id"),
]


async def test_what_is_asked_after_an_invalidation_is_kept_again_at_once(nodes: tuple[Whole, Whole]) -> None:
    one, _ = nodes
    await say(one, "hello", tags="x")
    await admin(one, "DELETE", tag="x")

    assert [await cached(one, "hello", tags="x") for _ in range(2)] == ["miss", "exact"]


async def test_what_is_wrong_is_named(nodes: tuple[Whole, Whole]) -> None:
    for method, path, params, field in WRONG:
        reply = await admin(nodes[0], method, path, **params)

        assert reply.status_code in (400, 404)
        assert reply.json()["error"]["param"] == field


async def test_tags_beyond_their_bounds_are_refused_by_the_headers_name(nodes: tuple[Whole, Whole]) -> None:
    for tags in ("x" * 65, ",".join(f"t{number}" for number in range(17)), "a b", "ü"):
        async with httpx.AsyncClient(timeout=30) as client:
            headers = {b"x-lamina-cache-tags": tags.encode("latin-1")}
            reply = await client.post(f"{nodes[0].url}{CHAT}", json=chat(), headers=headers)

        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-lamina-cache-tags")


async def test_every_request_leaves_an_audit_line_with_who_and_what(
    nodes: tuple[Whole, Whole], caplog: pytest.LogCaptureFixture
) -> None:
    assert logging.getLogger().level >= logging.WARNING  # as a worker's
    await admin(nodes[0], "DELETE", tag="prices", by="ann", reason="new list")
    view = (await admin(nodes[1], "GET")).json()

    action, _, text = caplog.records[0].getMessage().partition(" ")
    said = json.loads(text)
    assert (action, said["tag"], said["by"], said["from"]) == ("cache.invalidate", "prices", "ann", "127.0.0.1")
    told = view["invalidations"][0]
    assert (told["tag"], told["by"], told["reason"], told["at"]) == ("prices", "ann", "new list", said["at"])


async def test_the_master_key_is_asked_for(tmp_path: Path, valkey_url: str) -> None:
    settings = SETTINGS.format(redis=valkey_url, more="keys: {master: sk-master}")
    async with whole(tmp_path, settings) as node:
        assert (await admin(node, "GET")).status_code == 401
        async with httpx.AsyncClient(headers={"authorization": "Bearer sk-master"}, timeout=30) as client:
            assert (await client.get(f"{node.url}/admin/cache")).status_code == 200


async def test_without_its_store_the_cache_cannot_be_asked(tmp_path: Path) -> None:
    async with whole(tmp_path, SETTINGS.format(redis=f"unix://{tmp_path}/nobody.sock", more="")) as node:
        replies = [await admin(node, "GET"), await admin(node, "DELETE", tag="x")]

    assert [reply.status_code for reply in replies] == [503, 503]


async def test_a_worker_hears_of_another_nodes_invalidation_within_a_second(nodes: tuple[Whole, Whole]) -> None:
    one, other = nodes
    heard = asyncio.Event()
    one.wired.keeping.on_cut(heard.set)
    await admin(other, "DELETE", tag="anything")

    async with asyncio.timeout(60.0):  # on an idle machine 0.4 s at most
        await heard.wait()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, of click
async def test_the_command_line_counts_lists_and_deletes(
    nodes: tuple[Whole, Whole], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.cli import cache  # under the filter above

    monkeypatch.setenv("COLUMNS", "80")
    one, other = nodes
    await say(one, "hello", tags="x,[red]y")
    entry = (await say(one, "hello")).headers["x-lamina-entry"]
    gateway = cache.Gateway(other.url, None)
    x: dict[str, str | None] = {"tag": "x"}

    await asyncio.to_thread(cache.stats, gateway)
    await asyncio.to_thread(cache.list_entries, gateway, wanted=x, limit=5)
    with pytest.raises(cache.CacheRefused, match="No entry 'nobody' is kept"):
        await asyncio.to_thread(cache.delete, gateway, entry="nobody", wanted={}, is_all=False, reason=None)
    with pytest.raises(cache.CacheRefused, match="name an entry"):
        cache.delete(gateway, entry=None, wanted={}, is_all=False, reason=None)
    with pytest.raises(cache.CacheRefused, match="one of the three"):
        cache.delete(gateway, entry=None, wanted=x, is_all=True, reason=None)
    await asyncio.to_thread(cache.delete, gateway, entry=None, wanted=x, is_all=False, reason="a test")

    printed = capsys.readouterr().out
    assert "model m" in printed
    assert entry in printed
    assert ", tags [red]y, x\n" in printed
    assert "1 entries were forgotten" in printed
    assert await cached(one, "hello") == "miss"


async def test_lamina_cache_is_a_command(nodes: tuple[Whole, Whole]) -> None:
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "cache", "delete", "--tag", "x"]
    process = await asyncio.create_subprocess_exec(*command, "--url", nodes[0].url, stdout=subprocess.PIPE)

    out, _ = await process.communicate()

    assert (process.returncode, out.decode()) == (0, "0 entries were forgotten, at every worker and node\n")
