"""Whether the log's tables are there, asked once for each database that is open."""

from __future__ import annotations

from sqlalchemy import Engine, inspect


class Tables:
    """Know of one database whether it has the log's tables; raises SQLAlchemy's errors.

    Readers ask, and take a database without tables as an empty one; writers make them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: set[str] = set()

    def has(self, name: str) -> bool:
        """Tell whether a table is there; it is not looked for again once it was found."""
        if name not in self._known and inspect(self._engine).has_table(name):
            self._known.add(name)
        return name in self._known

    def ensure(self, name: str) -> None:
        """Migrate the database, unless the table is known to be there."""
        if name not in self._known:
            from logging_layer.schema import ensure_schema  # Alembic is heavy: a worker that only reads has no need

            ensure_schema(self._engine)
            self._known.add(name)
