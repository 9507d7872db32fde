from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.access import Gatekeeper
from gateway.limits.errors import KeysUnavailable
from gateway.limits.key_book import KeyBook
from gateway.limits.key_table import KeyHash, KeyTable, NewKey
from gateway.parts import Access
from orchestration.core import Secret
from orchestration.core.errors import Forbidden, Unauthorized

HASH = KeyHash(Secret("pepper"))
NOW = 1_800_000_000.0


@pytest.fixture
def table(tmp_path: Path) -> KeyTable:
    return KeyTable(f"sqlite:///{tmp_path}/lamina.db", HASH)


@pytest.fixture
async def book(table: KeyTable) -> AsyncIterator[KeyBook]:
    opened = KeyBook(table, HASH, is_required=False, refresh_s=0.01, clock=lambda: NOW)
    yield opened
    await opened.aclose()


def tenant(book: KeyBook, bearer: str = "", *, master: str | None = None) -> str:
    access = Access(tenant_key=Secret("k"), master_key=None if master is None else Secret(master), keys=book)
    return Gatekeeper(access).tenant_of({b"authorization": f"Bearer {bearer}".encode()})


async def test_without_keys_any_bearer_is_a_tenant(book: KeyBook) -> None:
    await book.refresh()

    assert tenant(book) == "default"
    assert tenant(book, "anything") != tenant(book, "else")


async def test_from_the_first_key_on_every_call_needs_one(book: KeyBook, table: KeyTable) -> None:
    key, secret = table.create(NewKey("a"), now=NOW)
    await book.refresh()

    assert tenant(book, secret) == key.id
    for wrong in ("", "anything", secret[:-1], "sk-lamina-" + "x" * 43):
        with pytest.raises(Unauthorized):
            tenant(book, wrong)


async def test_the_master_key_stays_good_beside_keys(book: KeyBook, table: KeyTable) -> None:
    _, secret = table.create(NewKey("a"), now=NOW)
    await book.refresh()

    assert tenant(book, "sk-master", master="sk-master") not in ("default", tenant(book, secret, master="sk-master"))
    with pytest.raises(Unauthorized):
        tenant(book, "else", master="sk-master")


async def test_required_keys_close_the_gate_before_the_first_key(table: KeyTable) -> None:
    book = KeyBook(table, HASH, is_required=True)
    await book.refresh()

    with pytest.raises(Unauthorized):
        tenant(book, "anything")
    await book.aclose()


async def test_expired_and_revoked_keys_say_so(book: KeyBook, table: KeyTable) -> None:
    _, expired = table.create(NewKey("a", expires_at=NOW), now=NOW)
    _, revoked = table.create(NewKey("b"), now=NOW)
    table.revoke("b", now=NOW)
    await book.refresh()

    with pytest.raises(Unauthorized, match="expired"):
        tenant(book, expired)
    with pytest.raises(Unauthorized, match="revoked"):
        tenant(book, revoked)


async def test_a_running_worker_sees_a_revocation(book: KeyBook, table: KeyTable) -> None:
    _, secret = table.create(NewKey("a"), now=NOW)
    await book.start()
    assert tenant(book, secret)

    await asyncio.to_thread(table.revoke, "a", now=NOW)

    async with asyncio.timeout(30):
        while True:
            try:
                tenant(book, secret)
            except Unauthorized:
                return
            await asyncio.sleep(0.005)


async def test_a_key_may_ask_for_its_models_alone(book: KeyBook, table: KeyTable) -> None:
    key, _ = table.create(NewKey("a", models=["small"]), now=NOW)
    await book.refresh()
    gate = Gatekeeper(Access(tenant_key=Secret("k"), keys=book))

    gate.check_model(key.id, "small")
    gate.check_model("default", "large")
    with pytest.raises(Forbidden, match="'large'"):
        gate.check_model(key.id, "large")


async def test_nobody_is_let_in_before_the_keys_could_be_read() -> None:
    away = KeyTable("postgresql+psycopg2://u:p@127.0.0.1:9/none", HASH)
    book = KeyBook(away, HASH, is_required=False)
    await book.refresh()

    with pytest.raises(KeysUnavailable):
        tenant(book, "anything")
    assert tenant(book, "sk-master", master="sk-master")
    assert "does not answer" in (await book.check_health() or "")
    await book.aclose()


async def test_known_keys_hold_while_the_database_is_away(book: KeyBook, table: KeyTable) -> None:
    key, secret = table.create(NewKey("a"), now=NOW)
    await book.refresh()
    book._table = KeyTable("postgresql+psycopg2://u:p@127.0.0.1:9/none", HASH)

    await book.refresh()

    assert tenant(book, secret) == key.id
    assert await book.check_health() is not None
    table.close()
