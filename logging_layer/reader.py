"""Records read back: from SQL, and what has not been shipped yet from the spool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from logging_layer.codec import decode
from logging_layer.database import calls, open_database
from logging_layer.progress import load_progress
from logging_layer.segment import list_segments, read_lines


class CallReader:
    """Find one call's record by its id, on any worker's spool of this machine or in SQL.

    A record is there a few milliseconds after its call; an id that nobody knows takes `patience_s` longer, since
    its record may be on its way. A database that does not answer is as one that does not know.
    """

    def __init__(self, database_url: str, spool_folder: Path, *, patience_s: float = 0.15) -> None:
        self._engine = open_database(database_url)
        self._folder = spool_folder
        self._patience_s = patience_s

    async def get(self, call_id: str) -> dict[str, Any] | None:
        """Return the whole record, or None where no such call is known."""
        found = await asyncio.to_thread(self._find, call_id)
        if found is None:
            await asyncio.sleep(self._patience_s)
            found = await asyncio.to_thread(self._find, call_id)
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _find(self, call_id: str) -> dict[str, Any] | None:
        # How far SQL is, is read before SQL is asked: what is shipped in between is then found in the spool.
        progress = load_progress(self._folder, "sql")
        return self._find_in_sql(call_id) or self._find_in_spool(call_id, progress)

    def _find_in_sql(self, call_id: str) -> dict[str, Any] | None:
        try:
            with self._engine.connect() as connection:
                found = connection.execute(select(calls.c.record).where(calls.c.id == call_id)).scalar()
        except SQLAlchemyError:
            return None
        return found if isinstance(found, dict) else None

    def _find_in_spool(self, call_id: str, progress: dict[str, int]) -> dict[str, Any] | None:
        wanted = call_id.encode()
        for path in reversed(list_segments(self._folder)):
            try:
                for line in read_lines(path, start=progress.get(path.name, 0)):
                    if line.data is not None and wanted in line.data:
                        record = decode(line.data)
                        if record.get("id") == call_id:
                            return dict(record)
            except FileNotFoundError:
                continue  # shipped and deleted meanwhile; the second look finds it in SQL
        return None
