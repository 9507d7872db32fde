"""What the admin side says about this gateway: the settings in use, without a secret, and its processes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from gateway.settings import Settings


def in_use(settings: Settings, *, node: str, worker: str) -> dict[str, Any]:
    """Say which settings hold, as far as they explain what the page shows."""
    semantic = settings.cache.semantic
    return {
        "version": importlib.metadata.version("lamina"),
        "node": node,
        "worker": worker,
        "num_workers": settings.server.workers,
        "models": [
            {"id": model.id, "backends": [backend.type for backend in model.backends]} for model in settings.models
        ],
        "layers": [layer if isinstance(layer, str) else next(iter(layer)) for layer in settings.layers],
        "cache": {
            "exact": {"enabled": settings.cache.exact.enabled, "ttl_s": settings.cache.exact.ttl_s},
            "semantic": {
                "enabled": settings.uses_semantic_cache,
                "policy": semantic.policy,
                "threshold": semantic.threshold,
                "ttl_s": semantic.ttl_s,
            },
        },
        "content": settings.content,
    }


def processes(status: Mapping[str, Any]) -> dict[str, Any]:
    """Say what the supervisor wrote last: its processes, and where MLflow is where a browser can go there."""
    mlflow = status.get("mlflow")
    is_link = isinstance(mlflow, str) and mlflow.startswith(("http://", "https://"))
    return {"processes": status.get("children", {}), "mlflow": mlflow if is_link else None}
