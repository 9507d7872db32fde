"""Records into SQL: batches, each call once, whatever is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from logging_layer.database import calls, open_database, row_of
from logging_layer.sink import Shipped, SinkDown, SinkRefused
from logging_layer.tables import Tables

_INSERTS: dict[str, Insert] = {
    "sqlite": sqlite.insert(calls).on_conflict_do_nothing(index_elements=["id"]),
    "postgresql": postgresql.insert(calls).on_conflict_do_nothing(index_elements=["id"]),
}


class SqlSink:
    """Write the table `calls`, migrated before; a call that is there already is left as it is."""

    name = "sql"
    max_records = 500

    def __init__(self, url: str) -> None:
        self._engine = open_database(url)
        self._tables = Tables(self._engine)

    async def send(self, records: Sequence[Shipped]) -> None:
        """Insert the records in one transaction, in a thread."""
        await asyncio.to_thread(self._insert, records)

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _insert(self, records: Sequence[Shipped]) -> None:
        try:
            rows = [row_of(shipped.data, shipped.record) for shipped in records]
            self._tables.ensure(calls.name)
            with self._engine.begin() as connection:
                self._write(connection, rows)
        except (DataError, IntegrityError, ValueError, KeyError, TypeError) as exc:
            raise SinkRefused(f"SQL refused records: {exc!r}") from exc
        except StatementError as exc:
            if not isinstance(exc, DBAPIError):  # a value that the driver cannot even send
                raise SinkRefused(f"SQL refused records: {exc!r}") from exc
            raise SinkDown(f"SQL cannot be written: {exc}") from exc
        except SQLAlchemyError as exc:
            raise SinkDown(f"SQL cannot be written: {exc}") from exc

    def _write(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert the rows; to SQLite as the driver's own tuples, which takes a third of the time."""
        insert = _INSERTS[self._engine.dialect.name]
        if self._engine.dialect.name != "sqlite":
            connection.execute(insert, rows)
            return
        compiled = insert.compile(dialect=self._engine.dialect, column_keys=list(rows[0]))
        names = compiled.positiontup
        assert names is not None, "SQLite's parameters go by their places"
        connection.exec_driver_sql(str(compiled), [tuple([row[name] for name in names]) for row in rows])
