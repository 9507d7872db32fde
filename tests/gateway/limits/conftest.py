from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.limits.store import RedisScripts


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[RedisScripts]:
    """Give the scripts' connection to a real, empty Valkey."""
    opened = RedisScripts(valkey_url, timeout_s=5.0)
    yield opened
    await opened.aclose()


@pytest.fixture(scope="session")
def limits_postgres() -> Iterator[str]:
    """Run a real Postgres; its files lie where the user that it runs as under root may read them."""
    with tempfile.TemporaryDirectory(prefix="lt-pg-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        import pgserver  # heavy, and looks at the environment when it is imported

        server = pgserver.get_server(folder + "/data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of an empty database of each sort."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/lamina.db"
    import psycopg2

    server = str(request.getfixturevalue("limits_postgres"))
    connection = psycopg2.connect(server)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS calls, keys")
    connection.close()
    return server.replace("postgresql://", "postgresql+psycopg2://", 1)
