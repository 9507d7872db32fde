"""The log's tables in the shape that this version needs, whatever version made them."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, inspect, text

VERSION_TABLE = "lamina_log_version"
_FOLDER = Path(__file__).with_name("migrations")
_LOCK = 0x1A417A  # any number, the same for every process that migrates
_BEFORE_VERSIONS = "0001"  # the shape of the databases that were made before versions were kept


def ensure_schema(engine: Engine) -> None:
    """Migrate the database to the newest shape in one transaction; does nothing where it has it.

    Several processes and nodes may call it at once: one migrates, the others wait for it. Raises SQLAlchemy's errors.
    """
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
        _migrate(connection)
        connection.commit()


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    known = inspect(connection).get_table_names()
    if "calls" in known and VERSION_TABLE not in known:
        command.stamp(config, _BEFORE_VERSIONS)
    command.upgrade(config, "head")
