"""What must answer before anything is started: a Redis and a database of one's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.refusals import StartRefused

if TYPE_CHECKING:
    from sqlalchemy import Engine

_TIMEOUT_S = 10.0


async def check_redis(url: str) -> None:
    """Raise `StartRefused` where the Redis that the settings name does not answer."""
    from cache.redis_store import RedisStore  # half a second of imports that most starts need not pay

    try:
        store = RedisStore(url, timeout_s=3.0)
    except ValueError as exc:
        raise StartRefused(f"redis.url: {exc}") from exc
    try:
        problem = await store.check_health()
    finally:
        await store.aclose()
    if problem is not None:
        raise StartRefused(f"redis.url: {problem}; start it, or leave redis.url out to get a private one")


async def check_database(url: str) -> None:
    """Raise `StartRefused` where the database that the settings name does not answer; never shows its password."""
    from logging_layer.database import open_database  # likewise; the deadline is for the answer, not for imports

    try:
        engine = open_database(url)
    except ValueError as exc:
        problem: str | None = str(exc)
    else:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                problem = await asyncio.to_thread(_problem_of, engine)
        except TimeoutError:
            problem = f"no answer within {_TIMEOUT_S:g} s"
    if problem is not None:
        raise StartRefused(f"database.url: {problem}; mend it, or leave database.url out to get SQLite")


def _problem_of(engine: Engine) -> str | None:
    from sqlalchemy.exc import SQLAlchemyError  # likewise

    try:
        with engine.connect():
            return None
    except SQLAlchemyError as exc:
        reason = str(getattr(exc, "orig", None) or exc).strip().splitlines()[0]
        return f"{engine.url.render_as_string(hide_password=True)} does not answer ({reason})"
    finally:
        engine.dispose()
