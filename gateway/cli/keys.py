"""`lamina keys`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from gateway.limits.errors import StoreLost
from gateway.limits.key_table import KeyHash, KeyTable, KeyTableDown, NewKey
from gateway.limits.reading import limits_of
from gateway.limits.rules import WINDOWS_S, Limits, Scope
from gateway.limits.spend import Spend
from gateway.refusals import Refused, StartRefused
from gateway.settings import Settings, load_settings, process_environment
from gateway.supervisor.plan import database_url
from gateway.supervisor.state import STATE_FOLDER, StateFolder
from orchestration.core import Secret

_UNITS_S = {"h": 3600, "d": 86400}


class KeyRefused(Refused):
    """What was asked of the keys cannot be done."""


def create(new: NewKey, config: Path | None) -> None:
    """Make a key: its secret goes to stdout, once, and everything else to stderr, so that it can be piped."""
    settings = load_settings(config, environment=process_environment())
    _check(new, settings)
    with _opened(settings) as table:
        key, secret = table.create(new, now=time.time())
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    err.print(f"{key.id} '{key.name}' was made; this is the only time that its secret is shown:")
    sys.stdout.write(f"{secret}\n")
    if settings.keys.master is None:
        err.print("From now on every call needs a key; without keys.master the admin side stays open on loopback.")


def list_keys(config: Path | None) -> None:
    """Print every key: never a secret, only its last four letters."""
    settings = load_settings(config, environment=process_environment())
    with _opened(settings) as table:
        keys = table.list()
    now = time.time()
    shown = Table(
        Column("id", no_wrap=True),
        Column("name", overflow="fold"),
        "ends in",
        "team",
        "models",
        "limits",
        "expires",
        "state",
    )
    for key in keys:
        models = "all" if key.models is None else ", ".join(sorted(key.models))
        expires = "" if key.expires_at is None else _date(key.expires_at)
        cells = (key.id, key.name, key.last_four, key.team or "", models, _words(key.limits), expires)
        shown.add_row(*cells, key.state_at(now))
    Console(highlight=False).print(shown if keys else "No keys yet: lamina keys create NAME")


def revoke(name: str, config: Path | None) -> None:
    """Revoke the live keys of this id or name; running gateways know within two seconds."""
    settings = load_settings(config, environment=process_environment())
    with _opened(settings) as table:
        revoked = table.revoke(name, now=time.time())
    if not revoked:
        raise KeyRefused(f"there is no live key '{name}'; lamina keys list shows them")
    for key in revoked:
        Console(highlight=False).print(f"{key.id} '{key.name}' is revoked")


def spend(config: Path | None) -> None:
    """Print what each key and each team spent in the budget window that runs, by the call records in SQL."""
    settings = load_settings(config, environment=process_environment())
    with _opened(settings) as table:
        keys = table.list()
    default = limits_of(settings.limits.default)
    scopes = {f"{key.name} ({key.id})": Scope(f"key:{key.id}", key.limits.over(default)) for key in keys}
    for name in sorted({key.team for key in keys if key.team is not None}):
        team = settings.limits.teams.get(name)
        scopes[f"team {name}"] = Scope(f"team:{name}", Limits() if team is None else limits_of(team))
    shown = Table(Column("who", overflow="fold"), "window", "since", "spent USD", "budget USD")
    summed = Spend(database_url(settings, StateFolder(STATE_FOLDER)))
    for who, scope in scopes.items():
        since = float(scope.window_at(time.time()) * WINDOWS_S[scope.limits.window])
        budget = "" if scope.limits.budget_usd is None else f"{scope.limits.budget_usd:g}"
        try:
            spent = summed.sum_usd(scope, since=since)
        except StoreLost as exc:
            raise KeyRefused(f"{exc}; is database.url right, and the database running?") from exc
        shown.add_row(who, scope.limits.window, _date(since), f"{spent:.6f}", budget)
    Console(highlight=False).print(shown if scopes else "No keys yet: lamina keys create NAME")


def new_key(name: str, *, team: str | None, models: Sequence[str], limits: Limits, expires_in: str | None) -> NewKey:
    """Check what was typed; raises `KeyRefused`."""
    if not name.strip():
        raise KeyRefused("a key needs a name")
    if limits.window not in WINDOWS_S:
        raise KeyRefused(f"--window: {limits.window!r} is none of {', '.join(WINDOWS_S)}")
    expires_at = None if expires_in is None else time.time() + _seconds(expires_in)
    return NewKey(name=name, team=team, models=tuple(models), limits=limits, expires_at=expires_at)


def _check(new: NewKey, settings: Settings) -> None:
    known = [model.id for model in settings.models]
    for model in new.models:
        if model not in known:
            raise KeyRefused(f"--model: '{model}' is no model of the settings; those: {', '.join(known)}")
    if new.team is not None and new.team not in settings.limits.teams:
        teams = ", ".join(settings.limits.teams) or "none"
        raise KeyRefused(f"--team: '{new.team}' is not in the settings' limits.teams; there: {teams}")
    if "limits" not in settings.layers and (new.team is not None or not new.limits.is_empty):
        raise KeyRefused("layers has no 'limits' to hold the key's limits")


@contextmanager
def _opened(settings: Settings) -> Iterator[KeyTable]:
    """Open the table of this folder's installation, making its tenant key where there is none yet."""
    state = StateFolder(STATE_FOLDER)
    try:
        state.path.mkdir(mode=0o700, exist_ok=True)
        state.ensure_tenant_key()
        pepper = Secret(state.tenant_key_file.read_text())
    except OSError as exc:
        raise StartRefused(f"cannot write the state folder {state.path}: {exc.strerror}") from exc
    try:
        table = KeyTable(database_url(settings, state), KeyHash(pepper))
    except ValueError as exc:
        raise KeyRefused(f"database.url: {exc}") from exc
    try:
        yield table
    except KeyTableDown as exc:
        raise KeyRefused(f"{exc}; is database.url right, and the database running?") from exc
    finally:
        table.close()


def _seconds(text: str) -> float:
    count, unit = text[:-1], text[-1:]
    if not (count.isascii() and count.isdigit()) or unit not in _UNITS_S or not int(count):
        raise KeyRefused(f"--expires: {text!r} is no time like 12h or 90d")
    return float(int(count) * _UNITS_S[unit])


def _words(limits: Limits) -> str:
    named = {"rpm": limits.rpm, "tpm": limits.tpm, "parallel": limits.parallel}
    words = [f"{name} {value}" for name, value in named.items() if value is not None]
    if limits.budget_usd is not None:
        words.append(f"{limits.budget_usd:g} USD/{limits.window}")
    return ", ".join(words)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M")
