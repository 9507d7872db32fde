"""The weights of a model as the engine computes with them: fused projections, one type but for the norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from backends.engine.config import Progress
from backends.engine.model.quant import GROUP, Int4Matrix, Matrix, join, to_int4, to_int8
from backends.engine.model.shape import ModelShape


class ModelUnreadable(Exception):
    """A model's files are missing, damaged, or of a kind that this engine cannot run; the message says which."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are (out, in)."""

    attention_norm: torch.Tensor
    qkv: Matrix
    output: Matrix
    mlp_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of them; `head` is `embedding` itself where the two are tied. Keys and values are kept as `dtype`."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Matrix
    dtype: torch.dtype


class Source(Protocol):
    """Reads tensors by their names in the engine's own naming, such as `layers.3.q` or `embedding`."""

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor's values. Raises `ModelUnreadable`."""

    def read_int4(self, name: str) -> Int4Matrix | None:
        """Return a matrix that is stored in 4 bits as it is stored, `None` for any other."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What values are computed and kept in, and how matrices are quantised: a name from `QUANTIZATIONS`."""

    dtype: torch.dtype
    quantization: str = "none"


def assemble(
    shape: ModelShape, source: Source, *, is_tied: bool, precision: Precision, device: torch.device, progress: Progress
) -> ModelWeights:
    """Read every tensor once, check its size, and fuse what is used together. Raises `ModelUnreadable`."""
    reader = _Reader(shape, source, precision=precision, device=device)
    embedding = reader.matrix("embedding")
    layers = []
    for index in range(shape.num_layers):
        progress("weights", index, shape.num_layers)
        layers.append(_layer(reader, index))
    progress("weights", shape.num_layers, shape.num_layers)
    head = embedding if is_tied else reader.matrix("head")
    return ModelWeights(embedding, tuple(layers), reader.norm("norm"), head, precision.dtype)


def _layer(reader: _Reader, index: int) -> LayerWeights:
    def matrix(part: str) -> Matrix:
        return reader.matrix(f"layers.{index}.{part}")

    return LayerWeights(
        attention_norm=reader.norm(f"layers.{index}.attention_norm"),
        qkv=join([matrix("q"), matrix("k"), matrix("v")]),
        output=matrix("output"),
        mlp_norm=reader.norm(f"layers.{index}.mlp_norm"),
        gate_up=join([matrix("gate"), matrix("up")]),
        down=matrix("down"),
    )


class _Reader:
    """Read tensors of known sizes."""

    def __init__(self, shape: ModelShape, source: Source, *, precision: Precision, device: torch.device) -> None:
        hidden, inner = shape.hidden_size, shape.intermediate_size
        q_size, kv_size, _ = shape.qkv_sizes
        self._sizes = {
            "embedding": (shape.vocab_size, hidden),
            "head": (shape.vocab_size, hidden),
            "norm": (hidden,),
            "attention_norm": (hidden,),
            "mlp_norm": (hidden,),
            "q": (q_size, hidden),
            "k": (kv_size, hidden),
            "v": (kv_size, hidden),
            "output": (hidden, q_size),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        self._source = source
        self._precision = precision
        self._device = device

    def norm(self, name: str) -> torch.Tensor:
        """Return a norm's weights: they meet float32 sums, and are few."""
        return self._read(name).to(device=self._device, dtype=torch.float32).contiguous()

    def matrix(self, name: str) -> Matrix:
        if self._precision.quantization == "none":
            return self._read(name).to(device=self._device, dtype=self._precision.dtype).contiguous()
        if self._precision.quantization == "int8" or name in ("embedding", "head"):
            return to_int8(self._read(name).to(self._device))
        stored = self._source.read_int4(name)
        if stored is None:
            return to_int4(self._read(name).to(self._device))
        self._check(name, stored.codes)
        return stored.map_rows(lambda rows: rows.to(self._device).contiguous())

    def _read(self, name: str) -> torch.Tensor:
        tensor = self._source.read(name)
        self._check(name, tensor)
        return tensor

    def _check(self, name: str, tensor: torch.Tensor) -> None:
        wanted = self._sizes[name.rsplit(".", 1)[-1]]
        if tuple(tensor.shape) != wanted:
            raise ModelUnreadable(f"tensor {name} has the shape {tuple(tensor.shape)}; the model says {wanted}")
        is_grouped = self._precision.quantization != "int4" or len(wanted) == 1 or wanted[1] % GROUP == 0
        if not is_grouped:
            raise ModelUnreadable(
                f"tensor {name} has {wanted[1]} inputs; for 4 bits they must be a multiple of {GROUP}"
            )
