"""The weights of a model as the engine computes with them: fused projections, one type but for the norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from backends.engine.config import Progress
from backends.engine.model.shape import ModelShape


class ModelUnreadable(Exception):
    """A model's files are missing, damaged, or of a kind that this engine cannot run; the message says which."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are (out, in)."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of them; `head` is `embedding` itself where the two are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


Source = Callable[[str], torch.Tensor]
"""Reads one tensor by its name in the engine's own naming, such as `layers.3.q` or `embedding`."""

LAYER_PARTS = ("attention_norm", "q", "k", "v", "output", "mlp_norm", "gate", "up", "down")


def assemble(
    shape: ModelShape, source: Source, *, is_tied: bool, dtype: torch.dtype, device: torch.device, progress: Progress
) -> ModelWeights:
    """Read every tensor once, check its size, and fuse what is used together. Raises `ModelUnreadable`."""
    reader = _Reader(shape, source, dtype=dtype, device=device)
    embedding = reader.read("embedding")
    layers = []
    for index in range(shape.num_layers):
        progress("weights", index, shape.num_layers)
        layers.append(_layer(reader, index))
    progress("weights", shape.num_layers, shape.num_layers)
    head = embedding if is_tied else reader.read("head")
    return ModelWeights(embedding, tuple(layers), reader.read("norm"), head)


def _layer(reader: _Reader, index: int) -> LayerWeights:
    part = {name: reader.read(f"layers.{index}.{name}") for name in LAYER_PARTS}
    return LayerWeights(
        attention_norm=part["attention_norm"],
        qkv=torch.cat([part["q"], part["k"], part["v"]]),
        output=part["output"],
        mlp_norm=part["mlp_norm"],
        gate_up=torch.cat([part["gate"], part["up"]]),
        down=part["down"],
    )


class _Reader:
    """Read tensors of known sizes."""

    def __init__(self, shape: ModelShape, source: Source, *, dtype: torch.dtype, device: torch.device) -> None:
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
        self._dtype = dtype
        self._device = device

    def read(self, name: str) -> torch.Tensor:
        tensor = self._source(name)
        wanted = self._sizes[name.rsplit(".", 1)[-1]]
        if tuple(tensor.shape) != wanted:
            raise ModelUnreadable(f"tensor {name} has the shape {tuple(tensor.shape)}; the model says {wanted}")
        is_norm = len(wanted) == 1  # a norm's weights meet float32 sums, and are few
        return tensor.to(device=self._device, dtype=torch.float32 if is_norm else self._dtype).contiguous()
