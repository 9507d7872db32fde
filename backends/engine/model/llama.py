"""The Llama decoder over flat tokens: one forward pass for all rows of a step."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from backends.engine.model.quant import linear, rows_of
from backends.engine.model.shape import ModelShape
from backends.engine.model.weights import LayerWeights, ModelWeights

# A bfloat16 has 8 bits of significand: what is less than this share below the largest logit may be rounded past it.
_ROUNDING = 2.0**-6
_MAX_EXACT = 256


class LayerAttention(Protocol):
    """Store the keys and values of a step's tokens, and attend from its queries to all that came before them."""

    def write_kv(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values (N, kv_heads, dim) of a layer."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Return the attention of queries (N, heads, dim), as (N, heads * dim)."""


class Llama:
    """Weights and the arithmetic over them; keeps nothing between steps."""

    def __init__(self, shape: ModelShape, weights: ModelWeights) -> None:
        self._shape = shape
        self._weights = weights
        is_plain = isinstance(weights.head, torch.Tensor)
        self._working = weights.dtype if is_plain else torch.float32  # rows are quantised from float32
        self._cos, self._sin = (angles.to(weights.norm.device, self._working) for angles in _rotations(shape))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: LayerAttention) -> torch.Tensor:
        """Return the last hidden states (N, hidden), float32, of flat tokens (N,) at their positions (N,).

        What the layers add up to is kept in float32, whatever they compute in: that halves the error of bfloat16.
        """
        hidden = rows_of(self._weights.embedding, tokens)
        cos, sin = self._cos[positions], self._sin[positions]
        for index, layer in enumerate(self._weights.layers):
            normed = self._norm(hidden, layer.attention_norm)
            hidden = hidden + self._attention(index, layer, normed, cos, sin, attention)
            hidden = hidden + _mlp(layer, self._norm(hidden, layer.mlp_norm))
        return hidden

    def logits(self, hidden: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return float32 logits (R, V) of the hidden states (N, hidden) at `drawn` (R,).

        bfloat16 rounds a logit near 20 to steps of 0.125, which ties the likeliest tokens with one another: those
        are computed again in float32.
        """
        normed, head = self._norm_exactly(hidden[drawn], self._weights.norm), self._weights.head
        logits = linear(normed.to(self._working), head).float()
        if self._working is torch.float32:
            return logits
        assert isinstance(head, torch.Tensor)
        largest = logits.amax(dim=-1, keepdim=True)
        likely = logits >= largest - largest.abs() * _ROUNDING
        likely &= likely.sum(dim=-1, keepdim=True) <= _MAX_EXACT  # in a flat row nothing hangs on the rounding
        rows, ids = torch.nonzero(likely, as_tuple=True)
        logits[rows, ids] = (head[ids].float() * normed[rows]).sum(dim=-1)
        return logits

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._norm_exactly(hidden, weight).to(self._working)

    def _norm_exactly(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, (self._shape.hidden_size,), weight, self._shape.norm_epsilon)

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: LayerAttention,
    ) -> torch.Tensor:
        shape = self._shape
        heads = linear(hidden, layer.qkv).view(len(hidden), -1, shape.head_dim)
        num_rotated = shape.num_heads + shape.num_kv_heads
        rotated = rotate(heads[:, :num_rotated], cos, sin).to(self._weights.dtype)  # queries and keys at once
        attention.write_kv(index, rotated[:, shape.num_heads :], heads[:, num_rotated:].to(self._weights.dtype))
        return linear(attention.attend(index, rotated[:, : shape.num_heads]), layer.output)


def _mlp(layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = linear(hidden, layer.gate_up).chunk(2, dim=-1)
    return linear(F.silu(gate).mul_(up), layer.down)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head's dimension i with i + dim/2: heads (N, H, dim), cos and sin (N, 1, dim)."""
    first, second = heads.chunk(2, dim=-1)
    return torch.addcmul(heads * cos, torch.cat([-second, first], dim=-1), sin)


def _rotations(shape: ModelShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (max_len, 1, dim), computed in float32."""
    frequencies = torch.tensor(shape.rope_frequencies(), dtype=torch.float32)
    angles = torch.arange(shape.max_len, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos(), angles.sin()
