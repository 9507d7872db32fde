"""What new settings may change while serving, and what needs a restart: refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from gateway.checks import plan_checks
from gateway.refusals import SettingsError
from gateway.settings import Settings

FIXED = ("server", "engine", "database", "redis", "mlflow")
"""Sections that processes are started with."""
_OF_THE_SHIPPER = ("sample", "retention_days", "otlp", "jsonl")
_OF_THE_OWNER = (
    "model",
    "max_embedding_mb",
    "max_batch_size",
    "max_queue_delay_ms",
    "index",
    "pgvector_url",
    "approximate_above",
)


def check_change(old: Settings, new: Settings) -> None:
    """Raise `SettingsError` naming the first setting that other processes than the workers were started with."""
    for path, before, after in _fixed(old, new):
        if _shown(before) != _shown(after):
            raise SettingsError(f"{path}: cannot change while serving; restart to use it")


def _fixed(old: Settings, new: Settings) -> Iterator[tuple[str, Any, Any]]:
    for section in FIXED:
        yield from _leaves(section, getattr(old, section), getattr(new, section))
    for key in _OF_THE_SHIPPER:
        yield f"log.{key}", getattr(old.log, key), getattr(new.log, key)
    if old.uses_embedder:
        for key in _OF_THE_OWNER:
            yield f"cache.semantic.{key}", getattr(old.cache.semantic, key), getattr(new.cache.semantic, key)
    # A process that runs without being needed any more does no harm; one that is needed must run.
    yield "models: the engine does not run, and a model needs it", True, old.uses_engine or not new.uses_engine
    yield "the cache owner does not run, and the settings need it", True, old.uses_embedder or not new.uses_embedder
    before, after = plan_checks(old).worker_checks, plan_checks(new).worker_checks
    yield "validators: the guardrails worker's checks", before, after or before


def _leaves(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if not isinstance(before, BaseModel):
        yield path, before, after
        return
    for name in type(before).model_fields:
        yield from _leaves(f"{path}.{name}", getattr(before, name), getattr(after, name))


def _shown(value: Any) -> Any:
    """Compare secrets by what they hold, wherever they are."""
    if isinstance(value, BaseModel):
        return {name: _shown(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    reveal = getattr(value, "reveal", None)
    return reveal() if reveal is not None else value
