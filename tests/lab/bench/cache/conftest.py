from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cache import compiled
from gateway import model_store


@pytest.fixture(scope="session")
def encoder_folder(embedding_model: Path) -> Path:
    """Give the exported encoder, exporting it where it is not there yet (25 s, once)."""
    base = model_store.compiled_folder()
    return asyncio.run(compiled.ensure_compiled(embedding_model, base=base, name="all-minilm-l6-v2", precision="int8"))
