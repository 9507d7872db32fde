"""What is older than it may be goes: texts, rows, traces and files; labels and the policies' history stay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.exc import SQLAlchemyError

from logging_layer import segment
from logging_layer.codec import encode
from logging_layer.database import calls, open_database
from logging_layer.sink import SinkDown
from logging_layer.tables import Tables

DAY_S = 86_400.0
SPEND_S = 30 * DAY_S
"""How long a call's row is kept at least: the longest window that a budget is counted over."""
LEFT_OUT = "texts: older than log.retention_days"
_BATCH = 200
_LATE_S = 3600.0


class TraceKeeper(Protocol):
    """Delete old traces."""

    async def delete_before(self, time_ms: int, *, limit: int) -> int:
        """Delete some; returns how many. Raises `SinkDown`."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class SqlRetention:
    """Take the texts of calls older than `retention_s` out of SQL, and their rows once no budget counts them.

    A row is kept for 30 days at least, without its texts, its caller's own ids and the request's hash: what was spent
    is counted from it. At most 200 rows go in one transaction, so that nobody waits for long.
    """

    name = "sql_retention"

    def __init__(self, database_url: str, *, retention_s: float, clock: Callable[[], float] = time.time) -> None:
        self._engine = open_database(database_url)
        self._tables = Tables(self._engine)
        self._retention_s = retention_s
        self._clock = clock
        self._bare_from = 0.0
        self._num_bared = self._num_deleted = 0

    async def step(self) -> bool:
        """Handle one batch; True where more may wait. Raises `SinkDown`."""
        return await asyncio.to_thread(self._step)

    def numbers(self) -> dict[str, float]:
        """Count the rows that lost their texts, and those that went."""
        return {"bared": self._num_bared, "deleted": self._num_deleted}

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _step(self) -> bool:
        now = self._clock()
        try:
            if not self._tables.has(calls.name):
                return False
            with self._engine.begin() as connection:
                if self._engine.dialect.name == "sqlite":
                    connection.exec_driver_sql(
                        "PRAGMA secure_delete=ON"
                    )  # else the texts stay in the file's free pages
                num_deleted = _delete(connection, before=now - max(self._retention_s, SPEND_S))
                before = now - self._retention_s
                num_bared = 0 if num_deleted else _bare(connection, since=self._bare_from, before=before)
        except SQLAlchemyError as exc:
            raise SinkDown(f"old calls cannot be removed from SQL: {exc}") from exc
        if not num_bared + num_deleted:  # what was bared is not looked through again, but by the next process
            self._bare_from = before - _LATE_S
        self._num_deleted += num_deleted
        self._num_bared += num_bared
        return num_deleted + num_bared > 0


class TraceRetention:
    """Delete the traces of one experiment that are older than `retention_s` from MLflow, 100 at a time."""

    name = "mlflow_retention"

    def __init__(self, keeper: TraceKeeper, *, retention_s: float, clock: Callable[[], float] = time.time) -> None:
        self._keeper = keeper
        self._retention_s = retention_s
        self._clock = clock
        self._num_deleted = 0

    async def step(self) -> bool:
        """Delete one batch; True where there was one. Raises `SinkDown`."""
        gone = await self._keeper.delete_before(int((self._clock() - self._retention_s) * 1000), limit=100)
        self._num_deleted += gone
        return gone > 0

    def numbers(self) -> dict[str, float]:
        """Count the traces that went."""
        return {"deleted": self._num_deleted}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._keeper.aclose()


class FileRetention:
    """Delete files that nobody has written to for `retention_s`: segments that a view has not taken meanwhile, what
    sinks refused, and what matches `patterns` (`(folder, pattern)`).

    A segment that still has its writer stays, and so does one that `is_kept` does not know to be in the truth: an
    acknowledged record is never lost, however long SQL is away.
    """

    name = "file_retention"

    def __init__(
        self,
        spool: Path,
        *,
        retention_s: float,
        patterns: Sequence[tuple[Path, str]] = (),
        is_kept: Callable[[Path], bool] = lambda _path: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spool = spool
        self._patterns = [(spool, "refused.*"), *patterns]
        self._is_kept = is_kept
        self._retention_s = retention_s
        self._clock = clock
        self._num_deleted = 0

    async def step(self) -> bool:
        """Look through all files once. Raises `OSError`."""
        await asyncio.to_thread(self._sweep)
        return False

    def numbers(self) -> dict[str, float]:
        """Count the files that went."""
        return {"deleted": self._num_deleted}

    async def aclose(self) -> None:
        """Hold nothing."""

    def _sweep(self) -> None:
        before = self._clock() - self._retention_s
        files = [path for folder, pattern in self._patterns for path in folder.glob(pattern)]
        files += [
            path for path in segment.list_segments(self._spool) if segment.is_finished(path) and self._is_kept(path)
        ]
        for path in files:
            if _changed_at(path) < before:
                path.unlink(missing_ok=True)
                self._num_deleted += 1


def without_texts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a record without anything that a caller wrote or got; it says so, and decisions without texts stay."""
    content, error = record["content"], record["error"]
    left_out = [each for each in content["left_out"] if each != LEFT_OUT]
    return {
        **record,
        "content": {**content, "request": None, "answer": None, "left_out": [*left_out, LEFT_OUT]},
        "error": None if error is None else {**error, "message": None},
        "extra": {},
        "user": None,
        "session": None,
        "request_hash": "",
    }


def _delete(connection: Connection, *, before: float) -> int:
    old = select(calls.c.id).where(calls.c.received_at < before).limit(_BATCH)
    return connection.execute(delete(calls).where(calls.c.id.in_(old.scalar_subquery()))).rowcount


def _bare(connection: Connection, *, since: float, before: float) -> int:
    """Take out the texts of some calls: a row without its request's hash has lost them already."""
    is_old = (calls.c.received_at >= since) & (calls.c.received_at < before)
    old = select(calls.c.id, calls.c.record).where(is_old, calls.c.request_hash.is_not(None))
    rows = connection.execute(old.limit(_BATCH)).all()
    for call_id, record in rows:
        bared = encode(without_texts(record)).decode()
        values = {"record": bared, "user_id": None, "session_id": None, "request_hash": None}
        connection.execute(update(calls).where(calls.c.id == call_id).values(values))
    return len(rows)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
