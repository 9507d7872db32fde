"""What is known about served answers and their neighbours: right or wrong, who says so, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Boolean, Column, Double, Index, Select, String, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from logging_layer.database import metadata, open_database
from logging_layer.tables import Tables

labels = Table(
    "labels",
    metadata,
    Column("call", String, primary_key=True),
    Column("source", String, primary_key=True),
    Column("entry", String),
    Column("similarity", Double),
    Column("is_correct", Boolean),
    Column("inputs", String),
    Column("note", String),
    Column("labelled_at", Double, nullable=False),
    Index("labels_labelled_at", "labelled_at"),
)


class LabelsDown(Exception):
    """The database does not take or give labels now."""


class LabelSource(StrEnum):
    """Who judged; an earlier one in this list goes before a later one where they disagree."""

    HUMAN = "human"
    JUDGE = "judge"
    SHADOW = "shadow"
    NEAR_MISS = "near_miss"
    """A judge, about the nearest neighbour of a call that was not answered from the cache."""


@dataclass(frozen=True, slots=True)
class Label:
    """One judgement: whether the cached `entry` was, or would have been, a right answer to `call`.

    `similarity` is the cosine of the two questions, None for an exact hit. `is_correct` is None where the source
    could not tell. `inputs` are the scorer's numbers as JSON, where it judged. `labelled_at` is Unix time in seconds.
    """

    call: str
    source: LabelSource
    is_correct: bool | None
    labelled_at: float
    entry: str | None = None
    similarity: float | None = None
    inputs: str | None = None
    note: str | None = None


class LabelBook:
    """Keep labels in SQL: one for each call and source, the last one said."""

    def __init__(self, database_url: str) -> None:
        self._engine = open_database(database_url)
        self._tables = Tables(self._engine)

    async def add(self, new: Sequence[Label]) -> None:
        """Keep labels in one transaction; raises `LabelsDown`."""
        if new:
            await asyncio.to_thread(self._add, new)

    async def since(self, labelled_at: float, *, limit: int = 100_000) -> list[Label]:
        """Return the labels from a time on, oldest first; raises `LabelsDown`."""
        query = select(labels).where(labels.c.labelled_at >= labelled_at).order_by(labels.c.labelled_at).limit(limit)
        return await asyncio.to_thread(self._read, query)

    async def of(self, calls: Sequence[str]) -> dict[tuple[str, LabelSource], Label]:
        """Return what is known of some calls, by call and source; raises `LabelsDown`."""
        found = await asyncio.to_thread(self._read, select(labels).where(labels.c.call.in_(calls))) if calls else []
        return {(label.call, label.source): label for label in found}

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _add(self, new: Sequence[Label]) -> None:
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        insert = dialect.insert(labels)
        replaced = {column.name: insert.excluded[column.name] for column in labels.c if not column.primary_key}
        statement = insert.on_conflict_do_update(index_elements=["call", "source"], set_=replaced)
        try:
            self._tables.ensure(labels.name)
            with self._engine.begin() as connection:
                connection.execute(statement, [asdict(label) for label in new])
        except SQLAlchemyError as exc:
            raise LabelsDown(f"labels cannot be written: {exc}") from exc

    def _read(self, query: Select[Any]) -> list[Label]:
        try:
            if not self._tables.has(labels.name):
                return []
            with self._engine.connect() as connection:
                rows = connection.execute(query).mappings().all()
        except SQLAlchemyError as exc:
            raise LabelsDown(f"labels cannot be read: {exc}") from exc
        return [Label(**{**row, "source": LabelSource(row["source"])}) for row in rows]
