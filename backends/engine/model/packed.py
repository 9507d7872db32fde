"""The Llama decoder on the CPU kernels: one call per layer over packed weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backends.engine.attn.cpu import CpuPlan
from backends.engine.model.huge_pages import HugePages
from backends.engine.model.quant import GROUP, Int4Matrix, Int8Matrix, Matrix
from backends.engine.model.shape import ModelShape
from backends.engine.model.weights import LayerWeights, ModelWeights

PANEL = 32
"""Outputs in a panel of packed weights; as in takers.h."""

DEPTH = 64
"""Inputs of quantised matrices are filled up with zeros to a multiple of this; as in quantise.h."""


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
        self._norm = weights.norm
        memory = HugePages()
        self._layers = tuple(_pack_layer(layer, memory) for layer in weights.layers)
        self._head = memory.keep(pack(weights.head))
        is_tied = weights.embedding is weights.head
        if isinstance(weights.embedding, torch.Tensor):
            self._embedding = weights.embedding  # rows of packed values lie too far apart
        else:
            self._embedding = self._head if is_tied else pack(weights.embedding)
        self._cosines, self._sines = rotations(shape)
        self._like = torch.empty(0, dtype=weights.dtype)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, plan: CpuPlan) -> torch.Tensor:
        """Return the last hidden states (N, hidden), float32, of flat tokens (N,) at their positions (N,)."""
        shape = self._shape
        hidden: torch.Tensor = torch.ops.lamina.embed(tokens, self._embedding, shape.hidden_size)
        where = (self._cosines, self._sines, positions, plan.slots)
        sizes = (shape.num_heads, shape.intermediate_size, shape.norm_epsilon)
        layer_kernel = torch.ops.lamina.layer.default
        for index, layer in enumerate(self._layers):
            looks = (*plan.stored(index), plan.table, plan.tiles, plan.window(index))
            layer_kernel(hidden, self._like, *layer.tensors(), *where, *looks, *sizes)
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


def pack(matrix: Matrix) -> torch.Tensor:
    """Return a matrix (out, in) in panels of 32 outputs; the last is filled up with zeros.

    float32 (panels, in, 32) and bfloat16 (panels, in/2, 32, 2); 8 bits are int8 and 4 bits uint8 (panels, bytes), see
    int8.h and int4.h.
    """
    if isinstance(matrix, Int8Matrix):
        return _pack_int8(matrix.map_rows(_fill_up))
    if isinstance(matrix, Int4Matrix):
        return _pack_int4(matrix.map_rows(_fill_up))
    panels = _fill_up(matrix).view(-1, PANEL, matrix.shape[1])
    if matrix.dtype == torch.float32:
        return panels.transpose(1, 2).contiguous()
    return panels.view(-1, PANEL, matrix.shape[1] // 2, 2).transpose(1, 2).contiguous()


def pack_gate_up(gate_up: Matrix) -> torch.Tensor:
    """Return gate and up (2 * inner, in) packed so that each panel has 16 gates and then the 16 ups beside them."""
    if isinstance(gate_up, torch.Tensor):
        return pack(_interleave(gate_up))
    return pack(gate_up.map_rows(_interleave))


def _interleave(gate_up: torch.Tensor) -> torch.Tensor:
    half = PANEL // 2
    gate, up = (_fill_up(part, to=half) for part in gate_up.chunk(2))
    gate, up = (part.view(-1, half, *part.shape[1:]) for part in (gate, up))
    return torch.cat([gate, up], dim=1).flatten(0, 1)


def _fill_up(rows: torch.Tensor, to: int = PANEL) -> torch.Tensor:
    """Return rows followed by rows of zeros, up to a multiple of `to`."""
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, -len(rows) % to))


def _pack_int8(matrix: Int8Matrix) -> torch.Tensor:
    codes = F.pad(matrix.codes, (0, -matrix.codes.shape[1] % DEPTH))
    quads = codes.view(-1, PANEL, codes.shape[1] // 4, 4).transpose(1, 2).flatten(1)
    shifts = codes.sum(dim=-1, dtype=torch.int32) * 128
    tails = [numbers.view(-1, PANEL).view(torch.int8) for numbers in (matrix.scales, shifts)]
    return torch.cat([quads, *tails], dim=1)


def _pack_int4(matrix: Int4Matrix) -> torch.Tensor:
    depth = matrix.codes.shape[1]
    codes = F.pad(matrix.codes, (0, -depth % DEPTH))
    nibbles = codes.view(-1, PANEL, codes.shape[1] // GROUP, 2, 4, 4)  # of each group two sets of four quads
    low, high = nibbles.permute(3, 0, 2, 4, 1, 5).flatten(3)
    tails = [
        F.pad(numbers, (0, codes.shape[1] // GROUP - numbers.shape[1])).view(-1, PANEL, codes.shape[1] // GROUP)
        for numbers in (matrix.scales, matrix.leasts)
    ]
    words = [numbers.transpose(1, 2).contiguous().view(torch.uint8) for numbers in tails]
    return torch.cat([low | high << 4, *words], dim=2).flatten(1)


def rotations(shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (max_len, dim / 2) in float32."""
    frequencies = torch.tensor(shape.rope_frequencies(), dtype=torch.float32)
    angles = torch.arange(shape.max_len, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def _pack_layer(layer: LayerWeights, memory: HugePages) -> _PackedLayer:
    return _PackedLayer(
        attention_norm=layer.attention_norm,
        qkv=memory.keep(pack(layer.qkv)),
        output=memory.keep(pack(layer.output)),
        mlp_norm=layer.mlp_norm,
        gate_up=memory.keep(pack_gate_up(layer.gate_up)),
        down=memory.keep(pack(layer.down)),
    )
