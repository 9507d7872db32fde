"""Load a model from its path: the shape, the weights on their device, and a name for exactly these weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from backends.engine.config import Progress
from backends.engine.model.folder import FolderModel
from backends.engine.model.gguf import GgufModel
from backends.engine.model.shape import ModelShape
from backends.engine.model.weights import ModelUnreadable, ModelWeights, Precision, assemble

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to compute.

    `revision` is a hash over its files and how they are computed with: other answers never share it.
    """

    shape: ModelShape
    weights: ModelWeights
    revision: str
    device: torch.device
    dtype: torch.dtype


def choose_device(name: str) -> torch.device:
    """Return the device by name; `auto` is the GPU where there is one. Raises `ModelUnreadable` where it is missing."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelUnreadable(f"device {name} was asked for and there is none; use cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError as exc:
        raise ModelUnreadable(f"device {name} is not known; use auto, cpu, cuda or cuda:N") from exc


def load(
    path: Path, *, dtype: str, device: torch.device, progress: Progress, quantization: str = "none"
) -> LoadedModel:
    """Load a GGUF file or a folder of safetensors, quantised as asked. Raises `ModelUnreadable` with what is wrong."""
    if not path.exists():
        raise ModelUnreadable(f"no model at {path}")
    model = FolderModel(path) if path.is_dir() else GgufModel(path)
    precision = Precision(DTYPES[dtype], quantization)
    weights = assemble(model.shape, model, is_tied=model.is_tied, precision=precision, device=device, progress=progress)
    name = f"{_digest(path)}-{dtype}" if quantization == "none" else f"{_digest(path)}-{dtype}-{quantization}"
    return LoadedModel(model.shape, weights, name, device, precision.dtype)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in _files(path):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while block := content.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    yield path / "config.json"
    yield from sorted(path.glob("*.safetensors"))
