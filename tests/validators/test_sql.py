"""SQL that reads passes; what writes, waits, or is read in different ways by different databases does not."""

from __future__ import annotations

import pytest

from tests.validators.looks import verdict_of
from validators.check import Outcome


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders",
        "(select 1) union all select 2;",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "SELECT 'drop table; -- x' AS \"delete\" FROM t",
        "SELECT replace(name, 'x', 'y') FROM t -- drop",
        "SELECT a[1] FROM t WHERE b = 'it''s' /* update */",
        "EXPLAIN SELECT 1",
        "VALUES (1), (2)",
        "```sql\nSELECT updated_at FROM t\n```",
        "SELECT data->>'update' FROM t",
    ],
)
def test_a_statement_that_reads_passes(sql: str) -> None:
    assert verdict_of("sql", sql).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select 1; drop table x", "2 statements"),
        ("WITH x AS (INSERT INTO a VALUES (1) RETURNING *) SELECT * FROM x", "INSERT"),
        ("SELECT * INTO new FROM t", "INTO"),
        ("SELECT * FROM a FOR UPDATE", "UPDATE"),
        ("EXPLAIN ANALYZE DELETE FROM x", "ANALYZE"),
        ("SELECT pg_sleep(10)", "calls pg_sleep"),
        ('SELECT "pg_sleep"(10)', "calls pg_sleep"),
        ("SELECT load_file('/etc/passwd')", "calls load_file"),
        ("DELETE FROM a", "does not begin"),
        ("Here is your query: SELECT 1", "does not begin"),
        ("", "no SQL"),
        ("-- nothing", "no SQL"),
        ("SELECT 1 /*!50000; DROP TABLE x */", "different ways"),
        ("SELECT 'a\\'; DROP TABLE x; -- '", "different ways"),
        ("SELECT $$ ; drop table x $$", "different ways"),
        ("SELECT 1 # '\n; DROP TABLE x -- '", "different ways"),
        ("SELECT 1--1; DROP TABLE x", "different ways"),
        ("SELECT /* x /* y */ 1", "different ways"),
        ("SELECT 1 /* open", "different ways"),
        ("SELECT `a; drop table b`", "different ways"),
        ("SELECT 1" + " " * 20_000, "at most 20000"),
    ],
)
def test_what_may_write_or_is_ambiguous_is_refused(sql: str, reason: str) -> None:
    verdict = verdict_of("sql", sql)

    assert verdict.outcome is Outcome.BLOCK
    assert reason in str(verdict.reason)


@pytest.mark.parametrize(
    ("sql", "passes"),
    [
        ("SELECT * FROM a JOIN s.b AS q ON 1 = 1", True),
        ("SELECT * FROM a x, \"A\" y", True),
        ("SELECT * FROM a x, secret", False),
        ("WITH c AS (SELECT * FROM a) SELECT * FROM c", True),
        ("SELECT * FROM (SELECT * FROM pg_user) q", False),
        ("SELECT extract(year FROM d) FROM a", True),
        ("SELECT 1 WHERE EXISTS (SELECT 1 FROM b)", False),
        ("SELECT * FROM a UNION SELECT * FROM b", False),
    ],
)  # fmt: skip
def test_only_the_tables_named_may_be_read(sql: str, passes: bool) -> None:
    assert (verdict_of("sql", sql, tables=["a", "s.b"]).outcome is Outcome.PASS) == passes


def test_more_statements_can_be_allowed() -> None:
    assert verdict_of("sql", "SELECT 1; SELECT 2", max_statements=2).outcome is Outcome.PASS
