"""What judges made of labelled pairs, in SQL: every worker and node on one database knows whose word counts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from sqlalchemy import Column, Double, Integer, String, Table, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from logging_layer.database import metadata, open_database
from logging_layer.tables import Tables

judge_checks = Table(
    "judge_checks",
    metadata,
    Column("fingerprint", String, primary_key=True),
    Column("model", String, nullable=False),
    *(Column(name, Integer, nullable=False) for name in ("num_pairs", "num_right", "num_traps")),
    *(Column(name, Integer, nullable=False) for name in ("num_fooled", "num_failed")),
    Column("checked_at", Double, nullable=False),
)


class ChecksDown(Exception):
    """The database does not take or give checks now."""


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    """One check of the judge `fingerprint`: `num_right` of all pairs, `num_fooled` of the traps taken for the same,
    `num_failed` without an opinion. `checked_at` is Unix time in seconds.
    """

    fingerprint: str
    model: str
    num_pairs: int
    num_right: int
    num_traps: int
    num_fooled: int
    num_failed: int
    checked_at: float


class JudgeChecks:
    """Keep the last check of each judge."""

    def __init__(self, database_url: str) -> None:
        self._engine = open_database(database_url)
        self._tables = Tables(self._engine)

    async def keep(self, check: JudgeCheck) -> None:
        """Keep a check in place of the judge's earlier one; raises `ChecksDown`."""
        await asyncio.to_thread(self._keep, check)

    async def of(self, fingerprint: str) -> JudgeCheck | None:
        """Return a judge's last check, None where there was none; raises `ChecksDown`."""
        return await asyncio.to_thread(self._of, fingerprint)

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _keep(self, check: JudgeCheck) -> None:
        try:
            self._tables.ensure(judge_checks.name)
            with self._engine.begin() as connection:
                connection.execute(delete(judge_checks).where(judge_checks.c.fingerprint == check.fingerprint))
                connection.execute(insert(judge_checks), asdict(check))
        except SQLAlchemyError as exc:
            raise ChecksDown(f"the judge's check cannot be kept: {exc}") from exc

    def _of(self, fingerprint: str) -> JudgeCheck | None:
        try:
            if not self._tables.has(judge_checks.name):
                return None
            with self._engine.connect() as connection:
                query = select(judge_checks).where(judge_checks.c.fingerprint == fingerprint)
                row = connection.execute(query).mappings().first()
        except SQLAlchemyError as exc:
            raise ChecksDown(f"the judge's check cannot be read: {exc}") from exc
        return None if row is None else JudgeCheck(**row)
