"""The Llama decoder on the CPU kernels: one call per layer over packed weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backends.engine.attn.cpu import CpuPlan
from backends.engine.model.shape import ModelShape
from backends.engine.model.weights import LayerWeights, ModelWeights

PANEL = 32
"""Outputs in a panel of packed weights; as in ops.cpp."""


@dataclass(frozen=True, slots=True)
class _PackedLayer:
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all of them in the order of the kernel's arguments."""
        return (self.attention_norm, self.qkv, self.output, self.mlp_norm, self.gate_up, self.down)


class PackedLlama:
    """Weights laid out for the kernels, and the calls over them; keeps nothing between steps.

    It computes what `Llama` does, and rounds less: only what enters a product is rounded to the weights' type.
    """

    def __init__(self, shape: ModelShape, weights: ModelWeights) -> None:
        self._shape = shape
        self._embedding = weights.embedding
        self._norm = weights.norm
        self._layers = tuple(_pack_layer(layer) for layer in weights.layers)
        self._head = pack(weights.head)
        self._cosines, self._sines = rotations(shape)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, plan: CpuPlan) -> torch.Tensor:
        """Return the last hidden states (N, hidden), float32, of flat tokens (N,) at their positions (N,)."""
        shape = self._shape
        hidden = F.embedding(tokens, self._embedding).float()
        where = (self._cosines, self._sines, positions, plan.slots)
        sizes = (shape.num_heads, shape.intermediate_size, shape.norm_epsilon)
        layer_kernel = torch.ops.lamina.layer.default
        for index, layer in enumerate(self._layers):
            layer_kernel(hidden, *layer.tensors(), *where, *plan.stored(index), plan.table, plan.tiles, *sizes)
        return hidden

    def logits(self, hidden: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return float32 logits (R, V) of the hidden states (N, hidden) at `drawn` (R,)."""
        epsilon, vocab_size = self._shape.norm_epsilon, self._shape.vocab_size
        logits: torch.Tensor = torch.ops.lamina.logits(hidden, drawn, self._norm, epsilon, self._head, vocab_size)
        return logits


def is_packable(shape: ModelShape) -> bool:
    """Tell whether the kernels take a model of this shape: bfloat16 comes in pairs."""
    depths = (shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim, shape.head_dim)
    return all(depth % 2 == 0 for depth in depths)


def pack(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix (out, in) in panels of 32 outputs: float32 (panels, in, 32), bfloat16 (panels, in/2, 32, 2)."""
    outputs, depth = matrix.shape
    padded = F.pad(matrix, (0, 0, 0, -outputs % PANEL)).view(-1, PANEL, depth)
    if matrix.dtype == torch.float32:
        return padded.transpose(1, 2).contiguous()
    return padded.view(-1, PANEL, depth // 2, 2).transpose(1, 2).contiguous()


def pack_gate_up(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gate and up (2 * inner, in) packed so that each panel has 16 gates and then the 16 ups beside them."""
    half = PANEL // 2
    gate, up = (F.pad(part, (0, 0, 0, -len(part) % half)).view(-1, half, part.shape[1]) for part in gate_up.chunk(2))
    return pack(torch.cat([gate, up], dim=1).view(-1, gate_up.shape[1]))


def rotations(shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (max_len, dim / 2) in float32."""
    frequencies = torch.tensor(shape.rope_frequencies(), dtype=torch.float32)
    angles = torch.arange(shape.max_len, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def _pack_layer(layer: LayerWeights) -> _PackedLayer:
    return _PackedLayer(
        attention_norm=layer.attention_norm,
        qkv=pack(layer.qkv),
        output=pack(layer.output),
        mlp_norm=layer.mlp_norm,
        gate_up=pack_gate_up(layer.gate_up),
        down=pack(layer.down),
    )
