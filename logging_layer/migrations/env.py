"""Alembic runs this file for each command; the connection, and its transaction, are `schema.py`'s."""

from __future__ import annotations

from alembic import context

from logging_layer.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
)
with context.begin_transaction():
    context.run_migrations()
