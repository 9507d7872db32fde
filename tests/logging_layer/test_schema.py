from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, insert, inspect, select, text

import logging_layer.judge_checks
import logging_layer.labels
import logging_layer.policies
from logging_layer.database import calls, metadata, open_database
from logging_layer.policies import PolicyHistory
from logging_layer.schema import VERSION_TABLE, ensure_schema


def differences(engine: Engine) -> list[object]:
    """Compare what the migrations made with what the code expects."""
    expected = {calls.name, logging_layer.labels.labels.name, logging_layer.policies.policies.name}
    expected |= {logging_layer.judge_checks.judge_checks.name}
    assert set(metadata.tables) == expected
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "include_name": _is_ours}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave out the tables of others in the same database, vectors among them."""
    return kind != "table" or name in metadata.tables


def test_migrations_make_the_tables_that_the_code_expects(database_url: str) -> None:
    engine = open_database(database_url)

    ensure_schema(engine)
    ensure_schema(engine)

    assert differences(engine) == []
    engine.dispose()


def test_a_database_from_before_versions_keeps_its_calls(database_url: str) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        calls.create(connection)
        row = {"id": "c1", "received_at": 1.0, "tenant": "t", "outcome": "answered", "record": "{}"}
        connection.execute(insert(calls), row)

    ensure_schema(engine)

    assert differences(engine) == []
    with engine.connect() as connection:
        assert connection.execute(select(calls.c.id)).scalars().all() == ["c1"]
    engine.dispose()


def test_eight_processes_at_once_migrate_one_database(database_url: str) -> None:
    engines = [open_database(database_url) for _ in range(8)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ensure_schema, engines))

    with engines[0].connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {VERSION_TABLE}")).scalar() == 1
        assert "labels" in inspect(connection).get_table_names()
    for engine in engines:
        engine.dispose()


async def test_the_newest_policy_is_in_force_and_the_older_ones_stay(database_url: str) -> None:
    history = PolicyHistory(database_url)
    assert await history.newest() is None
    for bar in (0.95, 0.97):
        await history.apply(
            policy="static", threshold=bar, wrong_to_call_cost=25, applied_by="ann", reason="a sweep", now=bar
        )

    newest = await history.newest()

    assert newest is not None
    assert (newest.version, newest.threshold, newest.applied_by) == (2, 0.97, "ann")
    assert [one.version for one in await history.recent()] == [2, 1]
    await history.aclose()
