"""Records into SQL: batches, each call once, whatever is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from logging_layer.database import calls, open_database, row_of
from logging_layer.sink import Shipped, SinkDown, SinkRefused
from logging_layer.tables import Tables


class SqlSink:
    """Write the table `calls`, migrated before; a call that is there already is left as it is."""

    name = "sql"
    max_records = 500

    def __init__(self, url: str) -> None:
        self._engine = open_database(url)
        self._tables = Tables(self._engine)
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        self._insert = _sqlite_insert() if self._is_sqlite else _postgres_insert(self._engine.dialect)

    def pick(self, data: bytes, record: Mapping[str, Any]) -> tuple[Any, ...]:
        """Make a record's row."""
        return row_of(data, record)

    async def send(self, records: Sequence[Shipped]) -> None:
        """Insert the records in one transaction, in a thread."""
        await asyncio.to_thread(self._send, records)

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _send(self, records: Sequence[Shipped]) -> None:
        try:
            rows = [shipped.picked or self.pick(shipped.data, shipped.record) for shipped in records]
            self._tables.ensure(calls.name)
            with self._engine.begin() as connection:
                self._write(connection, rows)
        except (DataError, IntegrityError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as exc:
            raise SinkRefused(f"SQL refused records: {exc!r}") from exc
        except StatementError as exc:
            if not isinstance(exc, DBAPIError):  # a value that the driver cannot even send
                raise SinkRefused(f"SQL refused records: {exc!r}") from exc
            raise SinkDown(f"SQL cannot be written: {exc}") from exc
        except SQLAlchemyError as exc:
            raise SinkDown(f"SQL cannot be written: {exc}") from exc

    def _write(self, connection: Connection, rows: list[tuple[Any, ...]]) -> None:
        """Insert the rows: SQLite takes them one by one, Postgres a list for each column, in one statement."""
        if self._is_sqlite:
            connection.exec_driver_sql(self._insert, rows)
        elif rows:
            connection.exec_driver_sql(self._insert, tuple(map(list, zip(*rows, strict=True))))


def _sqlite_insert() -> str:
    names = ", ".join(column.name for column in calls.columns)
    places = ", ".join("?" for _ in calls.columns)
    return f"INSERT INTO calls ({names}) VALUES ({places}) ON CONFLICT (id) DO NOTHING"


def _postgres_insert(dialect: Dialect) -> str:
    """Insert by lists: a statement for each row takes Postgres twice and its client three times as long."""
    names = ", ".join(column.name for column in calls.columns)
    lists = ", ".join(f"%s::{column.type.compile(dialect)}[]" for column in calls.columns)
    return f"INSERT INTO calls ({names}) SELECT * FROM unnest({lists}) ON CONFLICT (id) DO NOTHING"
