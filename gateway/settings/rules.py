"""What must hold between settings: names that exist, keys where they are needed, one model per process."""

from __future__ import annotations

import difflib
import os
import secrets
from pathlib import Path

from backends.openai_compatible.providers import PROVIDERS
from gateway.refusals import SettingsError
from gateway.settings.tree import BackendSettings, ModelSettings, Settings
from orchestration.core import Secret
from orchestration.core.balance import Strategy

_WITHOUT_WEIGHTS = (Strategy.ROUND_ROBIN, Strategy.COST)
BACKEND_TYPES = ("engine", "embedder", "echo", "openai_compatible", "anthropic")
_EXAMPLES = {"openai_compatible": "http://10.0.0.5:8000/v1", "anthropic": "https://api.anthropic.com"}
"""The types that are remote, each with an address as it may be."""


def with_master_key(settings: Settings) -> Settings:
    """Take the master key from its file where one is named; raises `SettingsError` where that cannot be.

    A file that is not there yet is made, with a random key that its owner alone can read: a first start is safe.
    """
    keys = settings.keys
    if keys.master is not None and not keys.master.reveal().strip():
        raise SettingsError("keys.master: is empty; give a long random text")
    if keys.master_file is None:
        return settings
    if keys.master is not None:
        raise SettingsError("keys.master_file: keys.master is set too; keep one of them")
    try:
        text = _read_or_make(keys.master_file.expanduser()).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"keys.master_file: cannot read or make {keys.master_file}: {exc}") from exc
    if not text:
        raise SettingsError(f"keys.master_file: {keys.master_file} is empty; write a long random text into it")
    return settings.model_copy(update={"keys": keys.model_copy(update={"master": Secret(text)})})


def _read_or_make(file: Path) -> str:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return file.read_text(encoding="utf-8")
    with os.fdopen(handle, "w", encoding="utf-8") as made:
        key = f"sk-lamina-{secrets.token_urlsafe(32)}"
        made.write(f"{key}\n")
    return key


def with_embedder(settings: Settings) -> Settings:
    """List the encoder as a model too wherever it runs for the semantic cache anyway."""
    model = settings.cache.semantic.model
    if not settings.uses_semantic_cache or any(listed.id == model for listed in settings.models):
        return settings
    card = ModelSettings(id=model, backends=(BackendSettings(type="embedder"),))
    return settings.model_copy(update={"models": (*settings.models, card)})


def with_addresses(settings: Settings) -> Settings:
    """Write the usual address of each backend's provider where none is named."""
    models = tuple(
        model.model_copy(update={"backends": tuple(_with_address(backend) for backend in model.backends)})
        for model in settings.models
    )
    return settings.model_copy(update={"models": models})


def _with_address(backend: BackendSettings) -> BackendSettings:
    known = PROVIDERS.get(backend.provider or "")
    if known is None or backend.base_url is not None:
        return backend
    return backend.model_copy(update={"base_url": known.base_url})


def check_rules(settings: Settings) -> None:
    """Raise `SettingsError` for the first rule that does not hold."""
    _check_models(settings)
    _check_keys(settings)
    _check_judge(settings)
    if settings.cache.semantic.index == "pgvector" and settings.pgvector_url is None:
        raise SettingsError(
            "cache.semantic.pgvector_url: index pgvector needs a Postgres, here or as database.url; "
            "as in postgresql://lamina:${PASSWORD}@10.0.0.5/lamina"
        )
    if settings.mlflow.serve and settings.mlflow.uri is not None:
        raise SettingsError("mlflow.serve: mlflow.uri names another MLflow; keep one of them")
    limits = (settings.limits.default, *settings.limits.teams.values())
    is_limited = any(one.model_dump(exclude={"window"}, exclude_none=True) for one in limits)
    if is_limited and "limits" not in settings.layers:
        raise SettingsError("limits: has limits, and layers has no 'limits' to hold them")
    for stage in ("input", "output"):
        is_stated = stage in settings.validators.model_fields_set and getattr(settings.validators, stage)
        if is_stated and f"{stage}_checks" not in settings.layers:
            raise SettingsError(f"validators.{stage}: has checks, and layers has no '{stage}_checks' to run them")
    _check_judges(settings)


def _check_judges(settings: Settings) -> None:
    ids = [model.id for model in settings.models]
    for index, judge in enumerate(settings.validators.judge):
        if judge.model not in ids:
            raise SettingsError(f"validators.judge[{index}].model: '{judge.model}' is no model here: {', '.join(ids)}")


def _check_models(settings: Settings) -> None:
    if not settings.models:
        raise SettingsError("models: is empty; name at least one")
    ids = [model.id for model in settings.models]
    for index, model in enumerate(settings.models):
        if model.id in ids[:index]:
            raise SettingsError(f"models[{index}].id: '{model.id}' is there twice")
        _check_choice(settings, model, f"models[{index}].route")
        if not model.backends and model.route is None:
            raise SettingsError(f"models[{index}].backends: '{model.id}' needs at least one, as in [{{type: engine}}]")
        for place, backend in enumerate(model.backends):
            path = f"models[{index}].backends[{place}]"
            _check_backend(settings, backend, path)
            if backend.weight != 1 and model.strategy in _WITHOUT_WEIGHTS:
                raise SettingsError(
                    f"{path}.weight: counts for nothing with strategy '{model.strategy}'; use 'weighted'"
                )
        for place, fallback in enumerate(model.fallbacks):
            if fallback not in ids or fallback == model.id:
                others = ", ".join(other for other in ids if other != model.id) or "none"
                raise SettingsError(
                    f"models[{index}].fallbacks[{place}]: '{fallback}' is no other model here; others: {others}"
                )


def _check_choice(settings: Settings, model: ModelSettings, path: str) -> None:
    if model.route is None:
        return
    if model.backends or model.fallbacks:
        key = "backends" if model.backends else "fallbacks"
        raise SettingsError(f"{path}: '{model.id}' chooses another model and takes no {key} of its own")
    plain = [other.id for other in settings.models if other.route is None]
    for size, chosen in zip(("small", "medium", "large"), model.route.models, strict=True):
        if chosen not in plain:
            raise SettingsError(f"{path}.{size}: '{chosen}' is no model with backends here; those: {', '.join(plain)}")


def _check_judge(settings: Settings) -> None:
    """A judge is a model of others': the built-in one is too small to judge, and an encoder says nothing."""
    judge = settings.cache.semantic.judge
    if judge is None:
        return
    path = "cache.semantic.judge.model"
    fit = [model for model in settings.models if model.backends and not any(map(_is_ours, model.backends))]
    if judge.model not in [model.id for model in fit]:
        others = ", ".join(model.id for model in fit) or "none"
        raise SettingsError(f"{path}: '{judge.model}' is no model with backends elsewhere; those: {others}")
    if not settings.uses_semantic_cache:
        raise SettingsError(f"{path}: there is no semantic cache to judge for; take it out, or turn the cache on")


def _is_ours(backend: BackendSettings) -> bool:
    return backend.type in ("engine", "embedder")


def _check_backend(settings: Settings, backend: BackendSettings, path: str) -> None:
    if backend.type not in BACKEND_TYPES:
        close = difflib.get_close_matches(backend.type, BACKEND_TYPES, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(BACKEND_TYPES)}"
        raise SettingsError(f"{path}.type: unknown backend '{backend.type}'; {hint}")
    _check_provider(backend, path)
    if backend.type in _EXAMPLES:
        if not (backend.base_url or "").startswith(("http://", "https://")):
            raise SettingsError(
                f"{path}.base_url: a backend of type '{backend.type}' needs one, as in {_EXAMPLES[backend.type]}"
            )
        return
    for key in ("base_url", "api_key"):
        if getattr(backend, key) is not None:
            raise SettingsError(f"{path}.{key}: means nothing for a backend of type '{backend.type}'")
    only = {"engine": settings.engine.model, "embedder": settings.cache.semantic.model}.get(backend.type)
    if only is not None and backend.model not in (None, only):
        section = "engine.model" if backend.type == "engine" else "cache.semantic.model"
        raise SettingsError(
            f"{path}.model: the {backend.type} runs one model, '{only}' ({section}), not '{backend.model}'"
        )


def _check_provider(backend: BackendSettings, path: str) -> None:
    if backend.provider is not None:
        if backend.type != "openai_compatible":
            raise SettingsError(f"{path}.provider: means nothing for a backend of type '{backend.type}'")
        if backend.provider not in PROVIDERS:
            close = difflib.get_close_matches(backend.provider, PROVIDERS, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(PROVIDERS)}; or leave it out"
            raise SettingsError(f"{path}.provider: unknown provider '{backend.provider}'; {hint}")
    elif backend.drop_params:
        raise SettingsError(f"{path}.drop_params: needs a provider, whose fields are known; name one or take it out")


def _check_keys(settings: Settings) -> None:
    if settings.keys.master is not None:
        return
    advice = 'set keys.master: "${LAMINA_MASTER_KEY}" or keys.master_file'
    if settings.keys.required:
        raise SettingsError(f"keys.required: there is no master key; {advice}")
    if not settings.server.is_loopback:
        raise SettingsError(f"server.host: {settings.server.host} can be reached from other machines; {advice}")
