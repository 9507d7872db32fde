"""The live log as a stream of scored requests: each semantic look-up with its best neighbour and its label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, case, select
from sqlalchemy.exc import SQLAlchemyError

from logging_layer.database import calls, open_database
from logging_layer.labels import LabelSource, labels
from logging_layer.schema import ensure_schema
from logging_layer.tuning.scored import Scored

MAX_ROWS = 200_000
MAX_QUESTIONS = 500
_PAGE = 500  # records are large, and the rows made of them are small
_RANK = {source.value: rank for rank, source in enumerate(LabelSource)}


class LogUnreadable(Exception):
    """The log's database cannot be read; the message says why."""


def read_live(database_url: str, *, since: float = 0.0, limit: int = MAX_ROWS) -> list[Scored]:
    """Read the newest `limit` semantic look-ups from a Unix time on, oldest first; raises `LogUnreadable`.

    Calls that no semantic tier looked at are left out: no bar would have served them. A call without a neighbour
    counts as a request with similarity -1.
    """
    engine = open_database(database_url)
    try:
        ensure_schema(engine)
        with engine.connect() as connection:
            rows = list(_rows(connection, since, limit))[::-1]
            return _with_neighbours(connection, rows)
    except SQLAlchemyError as exc:
        raise LogUnreadable(f"the log cannot be read: {exc}") from exc
    finally:
        engine.dispose()


def _rows(connection: Connection, since: float, limit: int) -> Iterator[Scored]:
    known = _labels(connection)
    query = select(calls.c.record).where(calls.c.received_at >= since, calls.c.cache_threshold.is_not(None))
    paged = query.order_by(calls.c.received_at.desc()).limit(limit).execution_options(yield_per=_PAGE)
    for record in connection.execute(paged).scalars():
        yield scored_of_record(record, is_correct=known.get(record["id"]))


def _labels(connection: Connection) -> dict[str, bool]:
    """Return each call's label, a person's before a judge's before a shadow call's."""
    rank = case(_RANK, value=labels.c.source, else_=len(_RANK))
    query = select(labels.c.call, labels.c.is_correct).where(labels.c.is_correct.is_not(None)).order_by(rank.desc())
    return {call: is_correct for call, is_correct in connection.execute(query)}


def scored_of_record(record: Mapping[str, Any], *, is_correct: bool | None) -> Scored:
    """Make a row of one call's record: the nearest neighbour that no guard vetoed."""
    cache = record["cache"]
    open_to = [one for one in cache["candidates"] if not one.get("veto")]
    best = max(open_to, key=lambda one: one["similarity"], default=None)
    return Scored(
        similarity=best["similarity"] if best else -1.0,
        is_correct=is_correct if best else None,
        p_correct=best.get("p_correct") if best else None,
        policy=cache["policy"] or "static",
        call=record["id"],
        question=_last_user_text(record),
        neighbour=cache["entry_call"] if best and best["entry"] == cache["entry"] else None,
    )


def _with_neighbours(connection: Connection, rows: list[Scored]) -> list[Scored]:
    """Put the question that was really asked then in the place of its call's id, for the wrong hits that are shown."""
    wrong = [row.neighbour for row in rows if row.is_correct is False and row.neighbour][-MAX_QUESTIONS:]
    found = connection.execute(select(calls.c.id, calls.c.record).where(calls.c.id.in_(wrong)))
    texts = {call: _last_user_text(record) for call, record in found}
    return [replace(row, neighbour=texts.get(row.neighbour)) if row.neighbour else row for row in rows]


def _last_user_text(record: Mapping[str, Any]) -> str | None:
    request = (record.get("content") or {}).get("request") or {}
    for message in reversed(request.get("messages") or ()):
        if isinstance(message, Mapping) and message.get("role") == "user" and isinstance(message.get("content"), str):
            return str(message["content"])[:2000]
    return None
