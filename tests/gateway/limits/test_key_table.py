from __future__ import annotations

import pytest
from sqlalchemy import insert

from gateway.limits.key_table import KeyHash, KeyTable, KeyTableDown, NewKey
from gateway.limits.rules import Limits, Scope
from gateway.limits.spend import Spend
from logging_layer.database import calls, open_database
from logging_layer.database import metadata as log_metadata
from orchestration.core import Secret

NOW = 1_800_000_000.0


def table_of(url: str, pepper: str = "pepper") -> KeyTable:
    return KeyTable(url, KeyHash(Secret(pepper)))


def test_a_key_is_kept_without_its_secret(database_url: str) -> None:
    table = table_of(database_url)
    limits = Limits(rpm=1, tpm=2, parallel=3, budget_usd=0.5, window="30d")
    new = NewKey("ci", team="t", models=["b", "a"], limits=limits, expires_at=NOW + 1)

    key, secret = table.create(new, now=NOW)

    assert secret.startswith("sk-lamina-")
    assert len(secret) > 40
    assert table.list() == [key]
    assert (key.name, key.team, key.models, key.limits, key.last_four) == (
        "ci",
        "t",
        frozenset("ab"),
        limits,
        secret[-4:],
    )
    assert secret[10:-4] not in repr(key)
    assert [key.state_at(NOW), key.state_at(NOW + 1)] == ["live", "expired"]
    table.close()


def test_hashes_depend_on_the_installation(database_url: str) -> None:
    here, there = KeyHash(Secret("a")), KeyHash(Secret("b"))

    assert here("sk-lamina-x") != there("sk-lamina-x")
    assert here("sk-lamina-x") != here("sk-lamina-y")


def test_revoking_goes_by_id_or_name_and_changes_the_version(database_url: str) -> None:
    table = table_of(database_url)
    empty = table.version()
    (first, _), (second, _) = (table.create(NewKey(name), now=NOW) for name in ("one", "two"))
    made = table.version()

    by_id = table.revoke(first.id, now=NOW)
    by_name = table.revoke("two", now=NOW)

    assert [key.id for key in (*by_id, *by_name)] == [first.id, second.id]
    assert table.revoke("two", now=NOW) == []
    assert table.revoke("nobody", now=NOW) == []
    assert {key.state_at(NOW) for key in table.list()} == {"revoked"}
    assert len({empty, made, table.version()}) == 3
    table.close()


def test_without_a_table_there_are_no_keys(database_url: str) -> None:
    table = table_of(database_url)

    assert (table.list(), table.version(), table.revoke("x", now=NOW)) == ([], (0, 0), [])
    table.close()


def test_a_database_that_is_away_is_said_without_its_password() -> None:
    table = table_of("postgresql+psycopg2://u:hunter2@127.0.0.1:9/none")

    with pytest.raises(KeyTableDown) as caught:
        table.list()

    assert "hunter2" not in str(caught.value)


def test_spend_sums_a_keys_and_a_teams_calls_of_the_window(database_url: str) -> None:
    table, spend = table_of(database_url), Spend(database_url)
    key, _ = table.create(NewKey("a", team="t"), now=NOW)
    mate, _ = table.create(NewKey("b", team="t"), now=NOW)
    other, _ = table.create(NewKey("c"), now=NOW)
    rows = [(key.id, 0, 1.0), (key.id, -10, 2.0), (key.id, 0, None), (mate.id, 0, 4.0), (other.id, 0, 8.0)]
    database = open_database(database_url)
    with database.begin() as connection:
        log_metadata.create_all(connection)
        for number, (tenant, shift, cost) in enumerate(rows):
            row = {"id": str(number), "received_at": NOW + shift, "tenant": tenant, "outcome": "answered"}
            connection.execute(insert(calls).values(**row, cost_usd=cost, record="{}"))
    database.dispose()

    sums = [spend.sum_usd(Scope(name, Limits()), since=NOW) for name in (f"key:{key.id}", "team:t", "key:nobody")]

    assert sums == [1.0, 5.0, 0.0]
    table.close()
    spend._engine.dispose()
