"""Recorded calls one after the other, in the order in which they came in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from logging_layer.database import calls, open_database
from logging_layer.schema import ensure_schema

_PAGE = 500


class HistoryUnreadable(Exception):
    """The log's database cannot be read; the message says why."""


def read_history(database_url: str, *, since: float = 0.0, until: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield whole records from one Unix time to another, by pages of 500; raises `HistoryUnreadable`.

    Calls that are not shipped to SQL yet are not among them.
    """
    engine = open_database(database_url)
    try:
        ensure_schema(engine)
        last = (since, "")
        while True:
            query = select(calls.c.received_at, calls.c.id, calls.c.record).where(
                (calls.c.received_at > last[0]) | ((calls.c.received_at == last[0]) & (calls.c.id > last[1]))
            )
            if until is not None:
                query = query.where(calls.c.received_at <= until)
            with engine.connect() as connection:
                page = connection.execute(query.order_by(calls.c.received_at, calls.c.id).limit(_PAGE)).all()
            if not page:
                return
            yield from (record for _, _, record in page)
            last = (page[-1][0], page[-1][1])
    except SQLAlchemyError as exc:
        raise HistoryUnreadable(f"the log cannot be read: {exc}") from exc
    finally:
        engine.dispose()
