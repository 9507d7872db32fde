"""Which bar is in force, since when, by whom and why: versions of the semantic cache's policy, in SQL."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from sqlalchemy import Column, Double, Integer, String, Table, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from logging_layer.database import metadata, open_database
from logging_layer.tables import Tables

policies = Table(
    "cache_policies",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("policy", String, nullable=False),
    Column("threshold", Double, nullable=False),
    Column("wrong_to_call_cost", Double, nullable=False),
    Column("applied_by", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("applied_at", Double, nullable=False),
)
_MAX_TRIES = 5
SETTINGS = "settings"
"""The policy of a version that gives the word back to the settings."""


class PoliciesDown(Exception):
    """The database does not take or give policies now."""


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """One version of the policy. `threshold` is a cosine; `wrong_to_call_cost` a ratio; `applied_at` Unix seconds."""

    version: int
    policy: str
    threshold: float
    wrong_to_call_cost: float
    applied_by: str
    reason: str
    applied_at: float


class PolicyHistory:
    """Keep every version that was ever applied; the newest is in force."""

    def __init__(self, database_url: str) -> None:
        self._engine = open_database(database_url)
        self._tables = Tables(self._engine)

    async def newest(self) -> AppliedPolicy | None:
        """Return what is in force, None where nothing was ever applied; raises `PoliciesDown`."""
        found = await self.recent(limit=1)
        return found[0] if found else None

    async def recent(self, *, limit: int = 100) -> list[AppliedPolicy]:
        """Return the newest versions, newest first; raises `PoliciesDown`."""
        return await asyncio.to_thread(self._recent, limit)

    async def apply(
        self, *, policy: str, threshold: float, wrong_to_call_cost: float, applied_by: str, reason: str, now: float
    ) -> AppliedPolicy:
        """Put a new version in force; of two at once both are kept, one after the other. Raises `PoliciesDown`."""
        draft = AppliedPolicy(0, policy, threshold, wrong_to_call_cost, applied_by, reason, now)
        return await asyncio.to_thread(self._apply, draft)

    async def apply_after(self, newest: int, draft: AppliedPolicy) -> AppliedPolicy | None:
        """Put a version in force if `newest` still is (0: none ever was), else do nothing and return None.

        So of several who come to the same conclusion at once, one acts. Raises `PoliciesDown`.
        """
        return await asyncio.to_thread(self._insert_after, newest, draft)

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)

    def _recent(self, limit: int) -> list[AppliedPolicy]:
        query = select(policies).order_by(policies.c.version.desc()).limit(limit)
        try:
            if not self._tables.has(policies.name):
                return []
            with self._engine.connect() as connection:
                return [AppliedPolicy(**row) for row in connection.execute(query).mappings()]
        except SQLAlchemyError as exc:
            raise PoliciesDown(f"the cache's policies cannot be read: {exc}") from exc

    def _apply(self, draft: AppliedPolicy) -> AppliedPolicy:
        for _ in range(_MAX_TRIES):
            self._ensure()
            newest = self._recent(1)
            applied = self._insert_after(newest[0].version if newest else 0, draft)
            if applied is not None:
                return applied
        raise PoliciesDown(f"the cache's policy was changed by others {_MAX_TRIES} times at once; try again")

    def _insert_after(self, newest: int, draft: AppliedPolicy) -> AppliedPolicy | None:
        """Insert the draft as the next version; returns None where that number is taken or others came since."""
        self._ensure()
        row = {**asdict(draft), "version": newest + 1}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(policies), row)
        except IntegrityError:
            return None
        except SQLAlchemyError as exc:
            raise PoliciesDown(f"the cache's policy cannot be written: {exc}") from exc
        return AppliedPolicy(**row)

    def _ensure(self) -> None:
        try:
            self._tables.ensure(policies.name)
        except SQLAlchemyError as exc:
            raise PoliciesDown(f"the cache's policy cannot be written: {exc}") from exc
