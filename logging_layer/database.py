"""The SQL side of the log: one table, the same for SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Double,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError

from logging_layer.codec import decode

metadata = MetaData()

calls = Table(
    "calls",
    metadata,
    Column("id", String, primary_key=True),
    Column("received_at", Double, nullable=False),
    Column("tenant", String, nullable=False),
    Column("request_id", String),
    Column("kind", String),
    Column("dialect", String),
    Column("requested_model", String),
    Column("model", String),
    Column("backend", String),
    Column("worker", String),
    Column("is_streamed", Boolean),
    Column("is_fallback", Boolean),
    Column("is_degraded", Boolean),
    Column("outcome", String, nullable=False),
    Column("phase", String),
    Column("status", Integer),
    Column("error_code", String),
    Column("cache_status", String),
    Column("cache_entry", String),
    Column("cache_similarity", Double),
    Column("cache_threshold", Double),
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("cost_usd", Double),
    Column("duration_ms", Double),
    Column("ttft_ms", Double),
    Column("overhead_ms", Double),
    Column("user_id", String),
    Column("session_id", String),
    Column("request_hash", String),
    Column("record", JSON, nullable=False),
    Index("calls_received_at", "received_at"),
    Index("calls_tenant", "tenant", "received_at"),
)


def open_database(url: str) -> Engine:
    """Open a database; connects at the first use. SQLite gets a write-ahead log, its folder is made.

    Raises `ValueError` for a URL that names neither SQLite nor Postgres, or a driver that is not installed.
    """
    try:
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if not is_sqlite and parsed.get_backend_name() != "postgresql":
            raise ValueError(f"the log is kept in sqlite or postgresql, not in {parsed.get_backend_name()}")
        # Records are written and read as the JSON that they are in the spool, without a detour through objects.
        engine = create_engine(
            parsed,
            json_serializer=_as_it_is,
            json_deserializer=decode,
            hide_parameters=True,  # an error's words are logged, and a record's texts are not theirs to tell
            pool_pre_ping=not is_sqlite,
            connect_args={"timeout": 10.0} if is_sqlite else {"connect_timeout": 5},
        )
    except (ArgumentError, ImportError) as exc:
        raise ValueError(f"the database's URL cannot be used: {exc}") from exc
    if is_sqlite:
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def row_of(data: bytes, record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Make the table's row, in the order of its columns, of a record and the JSON that it was read from."""
    get, cache, usage = record.get, record["cache"], record.get("usage") or {}
    return (
        _storable(get("id")),
        get("received_at"),
        _storable(get("tenant")),
        _storable(get("request_id")),
        get("kind"),
        get("dialect"),
        _storable(get("requested_model")),
        _storable(get("model")),
        _storable(get("backend")),
        _storable(get("worker")),
        get("is_streamed"),
        get("is_fallback"),
        bool(record["degraded"]),
        get("outcome"),
        get("phase"),
        get("status"),
        _storable((get("error") or {}).get("code")),
        cache["status"],
        _storable(cache["entry"]),
        cache["similarity"],
        cache["threshold"],
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        usage.get("cached_tokens"),
        get("cost_usd"),
        get("duration_ms"),
        get("ttft_ms"),
        get("overhead_ms"),
        _storable(get("user")),
        _storable(get("session")),
        get("request_hash"),
        data.decode(),
    )


def _storable(text: str | None) -> str | None:
    """Replace what Postgres takes in no text: NUL and lone surrogates, which a client may send in a model's name."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _as_it_is(text: str) -> str:
    return text


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA page_size=16384")  # of a new file: a record fills most of a page of 4,096, or needs two
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # the spool forgets what the database has taken
    cursor.close()
