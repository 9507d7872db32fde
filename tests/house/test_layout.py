"""The house itself: names resolve here, and what is started by everyone imports little."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gateway", "cache", "validators", "orchestration", "logging_layer", "backends", "lab")


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_top_level_name_resolves_into_the_checkout(folder: str) -> None:
    spec = importlib.util.find_spec(folder)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT)


def test_the_public_validators_library_is_not_installed() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("validators")


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("orchestration.core", {"torch", "fastapi", "redis", "numpy", "orjson", "mlflow"}),
        ("gateway.worker", {"torch", "transformers", "mlflow", "litellm", "guardrails", "faiss", "onnxruntime"}),
        ("gateway.supervisor", {"torch", "transformers", "mlflow", "litellm", "guardrails", "faiss", "fastapi"}),
        ("gateway.cli", {"torch", "transformers", "mlflow", "litellm", "guardrails", "faiss", "fastapi"}),
        ("cache.owner", {"torch", "transformers", "sentence_transformers", "mlflow", "litellm", "fastapi"}),
        ("logging_layer.shipper", {"torch", "transformers", "mlflow", "litellm", "fastapi"}),
        ("backends.engine.server", {"transformers", "fastapi", "redis", "mlflow", "orchestration", "gateway"}),
    ],
)
def test_a_process_does_not_import_what_it_has_no_use_for(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(out.stdout.split()) & forbidden == set()
