"""The index in Postgres with pgvector: shared by all owners as it stands, in nobody's memory."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.index import Row
from cache.postgres import Postgres
from cache.store import StoreDown
from orchestration.core import Candidate

logger = logging.getLogger(__name__)

SESSION = (
    "SET hnsw.ef_search = 100; SET hnsw.iterative_scan = strict_order; SET maintenance_work_mem = '256MB';"
    " SET client_min_messages = warning"
)
"""What the connections have to be set to; rows that are over do not cut a scan short."""
_LOCK = 0x1A3C7E
_BUILD_S = 3600.0
_HOUSE_S = 60.0


class PgvectorIndex:
    """Keep and search the rows of one embedder's revision in a table of its own.

    A partition is read through the key and ranked exactly; one of more than `approximate_above` rows has an HNSW
    index of its own, over its rows alone, so that filtering costs no recall. Every method raises `StoreDown`; after
    that one look-up in `retry_s` is let through, the others fail at once.
    """

    def __init__(
        self,
        database: Postgres,
        *,
        revision: str,
        dim: int,
        approximate_above: int = 8_192,
        clock: Callable[[], float] = time.time,
        retry_s: float = 1.0,
        sweep_s: float = 60.0,
    ) -> None:
        self.generation = 0
        self.is_down = False
        self._database = database
        self._table = f"lamina_vectors_{hashlib.sha256(revision.encode()).hexdigest()[:12]}"
        self._dim = dim
        self._approximate_above = approximate_above
        self._clock = clock
        self._retry_s = retry_s
        self._sweep_s = sweep_s
        self._tried_at = 0.0
        self._counted = {"rows": 0, "partitions": 0, "approximate": 0}
        self._is_made = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make the table where it is not there yet and begin to keep house; without the database, try again later."""
        try:
            await self._ensure_made()
            await self._count()
        except StoreDown as exc:
            self.is_down = True
            logger.warning("pgvector.down: %s", exc)
        self._task = asyncio.create_task(self._keep_house_forever(), name="pgvector-housekeeping")

    async def aclose(self) -> None:
        """Stop keeping house and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._database.aclose()

    def is_ready(self, partition: str) -> bool:
        """Say so: a partition is where it is searched."""
        return True

    async def ready(self, partition: str) -> None:
        """Do nothing: a partition is where it is searched."""

    async def search(self, partition: str, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        """Return the at most `top_k` nearest living entries, nearest first, the newer first among equals."""
        found = await self._run(
            f"SELECT entry, embedding <=> %s::vector AS distance, added FROM {self._table}"
            " WHERE partition = %s AND expires_at > %s ORDER BY distance LIMIT %s",
            (_text(vector), partition, self._clock(), top_k),
        )
        ranked = sorted(found, key=lambda row: (row[1], -row[2]))
        return tuple(Candidate(entry, 1.0 - distance) for entry, distance, _ in ranked)

    async def add(self, partition: str, row: Row) -> bool:
        """Add a row, in place of the entry's earlier one."""
        await self._run(
            f"INSERT INTO {self._table} (partition, entry, expires_at, embedding) VALUES (%s, %s, %s, %s::vector)"
            " ON CONFLICT (partition, entry) DO UPDATE SET expires_at = EXCLUDED.expires_at,"
            " embedding = EXCLUDED.embedding, added = EXCLUDED.added",
            (partition, row.entry, row.expires_at, _text(row.vector)),
        )
        self.generation += 1
        return True

    async def remove_rows(self, rows: Sequence[tuple[str, str]]) -> int:
        """Take (partition, entry) rows out; returns how many there were."""
        found = await self._run(
            f"DELETE FROM {self._table} AS held USING unnest(%s::text[], %s::text[]) AS named (partition, entry)"
            " WHERE held.partition = named.partition AND held.entry = named.entry RETURNING 1",
            ([partition for partition, _ in rows], [entry for _, entry in rows]),
        )
        self.generation += len(found)
        return len(found)

    def numbers(self) -> Mapping[str, int]:
        """Return what is counted, rows as of the last minute."""
        return {**self._counted, "generation": self.generation, "unsaved": 0, "store_down": int(self.is_down)}

    async def keep_house(self) -> None:
        """Take out what is over, and give each large partition its index; two owners may do it at once."""
        over = await self._house(f"DELETE FROM {self._table} WHERE expires_at <= %s RETURNING 1", (self._clock(),))
        self.generation += len(over)
        counts = await self._count()
        if await self._house("SELECT 1 FROM pg_stat_progress_create_index WHERE relid = %s::regclass", (self._table,)):
            return  # another owner builds, and what is not valid yet may become so
        indexed = await self._indexes()
        kept = {name for name, (_, count) in counts.items() if count > self._approximate_above // 2}
        for name in indexed - kept:
            await self._house(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        for name, (partition, count) in counts.items():
            if count > self._approximate_above and name not in indexed:
                await self._build(name, partition)

    async def _count(self) -> dict[str, tuple[str, int]]:
        """Count rows; returns (partition, rows) of the larger ones by the name that an index of theirs has."""
        [(num_rows, num_partitions)] = await self._house(
            f"SELECT count(*), count(DISTINCT partition) FROM {self._table}"
        )
        self._counted.update(rows=num_rows, partitions=num_partitions)
        larger = await self._house(
            f"SELECT partition, count(*) FROM {self._table} GROUP BY 1 HAVING count(*) > %s",
            (self._approximate_above // 2,),
        )
        return {self._index_name(partition): (partition, count) for partition, count in larger}

    async def _indexes(self) -> set[str]:
        """Name the indexes of large partitions; one whose building was broken off is taken away."""
        found = await self._house(
            "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indrelid = %s::regclass AND relname LIKE %s",
            (self._table, f"{self._table}_near_%"),
        )
        for name, is_valid in found:
            if not is_valid:
                await self._house(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        self._counted["approximate"] = sum(is_valid for _, is_valid in found)
        return {name for name, is_valid in found if is_valid}

    async def _build(self, name: str, partition: str) -> None:
        """Build a partition's index while it is read and written; takes minutes for a million rows."""
        begun = time.monotonic()
        await self._database.run(
            f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {self._table}"
            " USING hnsw (embedding vector_cosine_ops) WHERE partition = %s",
            (partition,),
            timeout_s=_BUILD_S,
        )
        await self._house(f"ANALYZE {self._table}")  # or the planner takes the partition for a small one
        self._counted["approximate"] += 1
        logger.info("pgvector.built seconds=%.1f", time.monotonic() - begun)

    def _index_name(self, partition: str) -> str:
        return f"{self._table}_near_{hashlib.sha256(partition.encode()).hexdigest()[:12]}"

    async def _keep_house_forever(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_s)
            try:
                await self._ensure_made()
                await self.keep_house()
            except StoreDown as exc:
                logger.warning("pgvector.housekeeping: %s", exc)

    async def _ensure_made(self) -> None:
        if self._is_made:
            return
        statements = (
            f"SELECT pg_advisory_xact_lock({_LOCK})",  # two owners that make it at once would collide
            "CREATE EXTENSION IF NOT EXISTS vector",
            f"CREATE TABLE IF NOT EXISTS {self._table} (partition text NOT NULL, entry text NOT NULL,"
            " added bigint GENERATED BY DEFAULT AS IDENTITY, expires_at double precision NOT NULL,"
            f" embedding vector({self._dim}) NOT NULL, PRIMARY KEY (partition, entry))",
            f"CREATE INDEX IF NOT EXISTS {self._table}_over ON {self._table} (expires_at)",
        )
        await self._database.run("; ".join(statements))  # sent as one, they are one transaction
        self._is_made = True

    async def _house(self, statement: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return await self._database.run(statement, params, timeout_s=_HOUSE_S)

    async def _run(self, statement: str, params: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run what somebody waits for; after a failure the next ones fail at once for a moment."""
        if self.is_down and time.monotonic() < self._tried_at + self._retry_s:
            raise StoreDown("the database was down a moment ago")
        self._tried_at = time.monotonic()  # while this one tries, the others are not let through
        try:
            await self._ensure_made()
            found = await self._database.run(statement, params)
        except StoreDown as exc:
            if not self.is_down:
                logger.warning("pgvector.down: %s", exc)
            self.is_down = True
            raise
        self.is_down = False
        return found


def _text(vector: NDArray[np.float32]) -> str:
    """Write a vector as pgvector reads it, exactly."""
    return f"[{','.join([format(value, '.9g') for value in vector.tolist()])}]"
