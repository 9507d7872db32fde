"""What was spent, summed from the call records in SQL."""

from __future__ import annotations

import asyncio

from sqlalchemy import ColumnElement, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from gateway.limits.errors import StoreLost
from gateway.limits.key_table import keys
from gateway.limits.rules import Scope
from logging_layer.database import calls, open_database


class Spend:
    """Sum costs; a record counts once it is shipped, which is a second or so after its call."""

    def __init__(self, database_url: str) -> None:
        self._engine = open_database(database_url)

    async def spent_usd(self, scope: Scope, *, since: float) -> float:
        """Sum a key's costs, or those of all keys that are or were in a team; raises `StoreLost`."""
        return await asyncio.to_thread(self.sum_usd, scope, since=since)

    def sum_usd(self, scope: Scope, *, since: float) -> float:
        """Sum as `spent_usd` does, blocking."""
        try:
            tables = set(inspect(self._engine).get_table_names())
            if calls.name not in tables or (scope.is_team and keys.name not in tables):
                return 0.0
            total = select(func.sum(calls.c.cost_usd)).where(_of(scope), calls.c.received_at >= since)
            with self._engine.connect() as connection:
                return float(connection.execute(total).scalar() or 0.0)
        except SQLAlchemyError as exc:
            raise StoreLost(f"the call records cannot be summed ({type(exc).__name__})") from exc

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._engine.dispose)


def _of(scope: Scope) -> ColumnElement[bool]:
    if scope.is_team:
        return calls.c.tenant.in_(select(keys.c.id).where(keys.c.team == scope.holder))
    return calls.c.tenant == scope.holder
