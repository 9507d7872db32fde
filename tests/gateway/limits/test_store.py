from __future__ import annotations

import hiredis
import pytest

from gateway.limits.errors import StoreLost
from gateway.limits.store import RedisScripts


async def test_a_refusal_of_the_server_quotes_nothing(store: RedisScripts) -> None:
    with pytest.raises(StoreLost, match=r"refuses \(ERR\)"):
        await store.run("return redis.call('HINCRBY', KEYS[1], 'f', 'no number')", ["secret-key"], [])


async def test_a_script_that_the_server_forgot_is_sent_again(store: RedisScripts) -> None:
    assert await store.run("return 7", [], []) == 7
    assert not isinstance(await store._link.ask("SCRIPT", "FLUSH"), hiredis.ReplyError)

    assert await store.run("return 7", [], []) == 7


async def test_a_store_that_is_not_there_is_lost() -> None:
    store = RedisScripts("redis://127.0.0.1:9/0")

    with pytest.raises(StoreLost, match="cannot be reached"):
        await store.run("return 7", [], [])
