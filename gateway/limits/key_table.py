"""The keys in SQL: hashes alone, in the database that holds the log."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import (
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    func,
    insert,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from gateway.limits.rules import Limits
from logging_layer.database import open_database
from orchestration.core import Secret

PREFIX = "sk-lamina-"
metadata = MetaData()

keys = Table(
    "keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("last_four", String, nullable=False),
    Column("team", String),
    Column("models", String),
    Column("rpm", Integer),
    Column("tpm", Integer),
    Column("parallel", Integer),
    Column("budget_usd", Double),
    Column("budget_window", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("version", Integer, nullable=False),
)


class KeyTableDown(Exception):
    """The database does not answer."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret. Times are Unix seconds; `models` None: every model."""

    id: str
    name: str
    hash: bytes
    last_four: str
    team: str | None
    models: frozenset[str] | None
    limits: Limits
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def state_at(self, now: float) -> str:
        """Say `live`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "live"


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a key is made with."""

    name: str
    team: str | None = None
    models: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    expires_at: float | None = None


class KeyHash:
    """Hash bearers with the installation's own key, so that the table alone tells nobody's key from another."""

    def __init__(self, pepper: Secret) -> None:
        self._key = hashlib.sha256(pepper.reveal().encode()).digest()

    def __call__(self, bearer: str) -> bytes:
        """Return the hash of a bearer, 32 bytes."""
        return hashlib.blake2b(bearer.encode(), key=self._key, digest_size=32, person=b"lamina-key").digest()


class KeyTable:
    """Create, revoke and read keys. Every method blocks: call it in a thread where a loop runs.

    The table is made by the first `create`; until then there are no keys. Raises `KeyTableDown` where the database
    does not answer, `ValueError` at once for a URL of another sort.
    """

    def __init__(self, url: str, hash_of: KeyHash) -> None:
        self._engine = open_database(url)
        self._hash_of = hash_of

    def create(self, new: NewKey, *, now: float) -> tuple[Key, str]:
        """Make a key; returns it and its secret, which is kept nowhere."""
        secret = PREFIX + secrets.token_urlsafe(32)
        row = {
            "id": f"key_{secrets.token_hex(8)}",
            "name": new.name,
            "hash": self._hash_of(secret),
            "last_four": secret[-4:],
            "team": new.team,
            "models": "\n".join(new.models) or None,
            "rpm": new.limits.rpm,
            "tpm": new.limits.tpm,
            "parallel": new.limits.parallel,
            "budget_usd": new.limits.budget_usd,
            "budget_window": new.limits.window,
            "created_at": now,
            "expires_at": new.expires_at,
            "version": 1,
        }
        try:
            metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                connection.execute(insert(keys).values(row))
                made = connection.execute(select(keys).where(keys.c.id == row["id"])).mappings().one()
        except SQLAlchemyError as exc:
            raise _down(exc) from exc
        return _key(made), secret

    def revoke(self, name: str, *, now: float) -> list[Key]:
        """Revoke the live keys of this id, or else of this name; returns them, none where there is no such key."""
        if not self._exists():
            return []
        is_meant = (or_(keys.c.id == name, keys.c.name == name)) & keys.c.revoked_at.is_(None)
        change = update(keys).where(is_meant).values(revoked_at=now, version=keys.c.version + 1)
        try:
            with self._engine.begin() as connection:
                revoked = connection.execute(change.returning(keys)).mappings().all()
        except SQLAlchemyError as exc:
            raise _down(exc) from exc
        return [_key(row) for row in revoked]

    def version(self) -> tuple[int, int]:
        """Return what changes with every change: no clock is in it, since those of two machines differ."""
        if not self._exists():
            return 0, 0
        try:
            with self._engine.connect() as connection:
                count, total = connection.execute(select(func.count(), func.sum(keys.c.version))).one()
        except SQLAlchemyError as exc:
            raise _down(exc) from exc
        return int(count), int(total or 0)

    def list(self) -> list[Key]:
        """Return every key, revoked ones too, the oldest first."""
        if not self._exists():
            return []
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(select(keys).order_by(keys.c.created_at, keys.c.id)).mappings().all()
        except SQLAlchemyError as exc:
            raise _down(exc) from exc
        return [_key(row) for row in rows]

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _exists(self) -> bool:
        try:
            return inspect(self._engine).has_table(keys.name)
        except SQLAlchemyError as exc:
            raise _down(exc) from exc


def _key(row: RowMapping) -> Key:
    return Key(
        id=row["id"],
        name=row["name"],
        hash=row["hash"],
        last_four=row["last_four"],
        team=row["team"],
        models=None if row["models"] is None else frozenset(row["models"].split("\n")),
        limits=Limits(
            rpm=row["rpm"],
            tpm=row["tpm"],
            parallel=row["parallel"],
            budget_usd=row["budget_usd"],
            window=row["budget_window"],
        ),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )


def _down(error: SQLAlchemyError) -> KeyTableDown:
    # The library's words may quote the URL or a row: only the kind of fault is told.
    return KeyTableDown(f"the database with the keys does not answer ({type(error).__name__})")
