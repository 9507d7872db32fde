"""Many calls read back from SQL: lists of them, and sums over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, func, select
from sqlalchemy.exc import SQLAlchemyError

from logging_layer.database import calls, open_database
from logging_layer.tables import Tables

MAX_ROWS = 200
Row = dict[str, Any]
T = TypeVar("T")
_NAMES = tuple(column.name for column in calls.c if column.name != "record")


class ListingDown(Exception):
    """The database does not answer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which calls: those for which every field that is not None is so; `before` is a call's id, for the next page."""

    before: str | None = None
    model: str | None = None
    tenant: str | None = None
    outcome: str | None = None
    cache: str | None = None
    is_decision: bool | None = None
    """Whether the semantic cache held neighbours against a bar, served or not."""


class CallListing:
    """List and sum the calls that are in SQL, which is a second or so after their end.

    Raises `ListingDown` where the database does not answer; a database without the table has no calls.
    """

    def __init__(self, database_url: str) -> None:
        self._engine = open_database(database_url)
        self._tables = Tables(self._engine)

    async def find(self, wanted: Wanted, *, limit: int) -> list[Row]:
        """Return at most `limit` calls, the newest first, each with all columns and its `record`."""
        if any(isinstance(value, str) and "\0" in value for value in astuple(wanted)):
            return []  # Postgres takes no NUL, and so keeps none
        return await asyncio.to_thread(self._read, lambda on: _find(on, wanted, limit), [])

    async def sums(self, by: str, *, since: float) -> list[Row]:
        """Sum the calls since a Unix time by one column: `{by, calls, prompt_tokens, completion_tokens, cost_usd}`,
        the dearest first.
        """
        return await asyncio.to_thread(self._read, lambda on: _sums(on, by, since), [])

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _read(self, read: Callable[[Connection], T], nothing: T) -> T:
        try:
            if not self._tables.has(calls.name):
                return nothing
            with self._engine.connect() as connection:
                return read(connection)
        except SQLAlchemyError as exc:
            # The library's words may quote the URL: only the kind of fault is told.
            raise ListingDown(f"the call records cannot be read ({type(exc).__name__})") from exc


def _find(connection: Connection, wanted: Wanted, limit: int) -> list[Row]:
    query = select(calls).where(*_conditions(wanted)).order_by(calls.c.id.desc()).limit(min(limit, MAX_ROWS))
    return _rows(connection, query)


def _conditions(wanted: Wanted) -> Sequence[ColumnElement[bool]]:
    same: Mapping[str, str | None] = {
        "requested_model": wanted.model,
        "tenant": wanted.tenant,
        "outcome": wanted.outcome,
        "cache_status": wanted.cache,
    }
    conditions: list[ColumnElement[bool]] = [calls.c[name] == value for name, value in same.items() if value]
    if wanted.before:
        conditions.append(calls.c.id < wanted.before)  # ids sort by time
    if wanted.is_decision is not None:
        had_bar = calls.c.cache_threshold.is_not(None)
        conditions.append(had_bar if wanted.is_decision else ~had_bar)
    return conditions


def _sums(connection: Connection, by: str, since: float) -> list[Row]:
    if by not in _NAMES:
        raise ValueError(f"calls are summed by one of {', '.join(_NAMES)}, not by '{by}'")
    cost = func.coalesce(func.sum(calls.c.cost_usd), 0.0)
    query = (
        select(
            calls.c[by],
            func.count().label("calls"),
            func.coalesce(func.sum(calls.c.prompt_tokens), 0).label("prompt_tokens"),
            func.coalesce(func.sum(calls.c.completion_tokens), 0).label("completion_tokens"),
            cost.label("cost_usd"),
        )
        .where(calls.c.received_at >= since)
        .group_by(calls.c[by])
        .order_by(cost.desc(), func.count().desc(), calls.c[by])
        .limit(MAX_ROWS)
    )
    return _rows(connection, query)


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in connection.execute(query).mappings()]
