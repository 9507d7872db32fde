"""What an alias stands for, as a hash: its answers are another model's once that changes, and so are cached ones."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gateway import model_store
from gateway.settings import BackendSettings, ModelSettings, Settings
from orchestration.core.complexity import LARGE_FROM, MEDIUM_FROM

UNKNOWN = "unknown"


class RouteHashes:
    """Hash each alias's deployments, revisions, fallbacks and routing policy once; secrets are no part of it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._models = {model.id: model for model in settings.models}
        self._hashes = {model.id: self._hash(model) for model in settings.models}

    def of(self, alias: str) -> str:
        """Return the alias's hash; one that does not exist has a constant one."""
        return self._hashes.get(alias, UNKNOWN)

    def _hash(self, model: ModelSettings) -> str:
        described = json.dumps(self._describe(model, seen=frozenset()), sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:32]

    def _describe(self, model: ModelSettings, *, seen: frozenset[str]) -> dict[str, Any]:
        further = [name for name in model.fallbacks if name not in seen]
        return {
            "id": model.id,
            "strategy": model.strategy,
            "backends": [self._deployment(backend) for backend in model.backends],
            "route": self._choice(model, seen=seen | {model.id}),
            "fallbacks": [self._describe(self._models[name], seen=seen | {model.id}) for name in further],
        }

    def _choice(self, model: ModelSettings, *, seen: frozenset[str]) -> list[Any] | None:
        """Describe what an alias that chooses may choose, and the bars that it chooses by."""
        if model.route is None:
            return None
        chosen = [self._describe(self._models[name], seen=seen) for name in model.route.models if name not in seen]
        return [model.route.by, MEDIUM_FROM, LARGE_FROM, *chosen]

    def _deployment(self, backend: BackendSettings) -> list[str | None]:
        engine = self._settings.engine
        match backend.type:
            case "engine":
                return ["engine", revision(engine.model), engine.dtype, engine.quantization, engine.kv_dtype]
            case "embedder":
                return ["embedder", revision(self._settings.cache.semantic.model)]
            case _:
                said = [backend.provider, "drops"] if backend.drop_params else []
                return [backend.type, backend.base_url, backend.model, *said]


def revision(model: str) -> str:
    """Name the weights: a packaged model by its hash, a file by its path, size and time of change."""
    packaged = model_store.PACKAGED.get(model)
    if packaged is not None:
        return f"{model}@{packaged.sha256}"
    path = model_store.locate(model)
    if path is None:
        return model
    stat = path.stat()
    return f"{path}@{stat.st_size}.{stat.st_mtime_ns}"
