from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.limits.store import RedisScripts


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[RedisScripts]:
    """Give the scripts' connection to a real, empty Valkey."""
    opened = RedisScripts(valkey_url, timeout_s=60.0)
    yield opened
    await opened.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of an empty database of each sort."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/lamina.db"
    import psycopg2

    server = str(request.getfixturevalue("postgres_server"))
    connection = psycopg2.connect(server)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS calls, keys")
    connection.close()
    return server.replace("postgresql://", "postgresql+psycopg2://", 1)
