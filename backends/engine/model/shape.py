"""The shape of a model of the Llama family: what its weights' sizes and its arithmetic depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The frequency scaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and constants; `num_kv_heads` divides `num_heads`, and `max_len` is the context the model was made for.

    `windows` says per layer how many positions a token looks back over, itself included, `None` for all; an empty
    tuple is a model whose every layer looks at all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_len: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    eos_ids: frozenset[int]
    windows: tuple[int | None, ...] = ()

    @property
    def window(self) -> int | None:
        """Return how many of the last positions any layer still looks at: keys and values before them are unneeded."""
        sizes = [self.window_of(layer) for layer in range(self.num_layers)]
        known = [size for size in sizes if size is not None]
        return max(known) if len(known) == len(sizes) else None

    def window_of(self, layer: int) -> int | None:
        """Return how many positions a layer looks back over, or `None` for all."""
        return self.windows[layer] if self.windows else None

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Return the widths of queries, keys and values in the fused projection."""
        kv_size = self.num_kv_heads * self.head_dim
        return (self.num_heads * self.head_dim, kv_size, kv_size)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Return how many bytes of keys and values one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes

    def rope_frequencies(self) -> list[float]:
        """Return the rotation per position of each pair of dimensions, in radians."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-index / half) for index in range(half)]
        scaling = self.rope_scaling
        return plain if scaling is None else [_scale(each, scaling) for each in plain]


def _scale(frequency: float, scaling: RopeScaling) -> float:
    """Slow the long waves down by the factor, leave the short ones, and blend between the two bounds."""
    turns = scaling.original_max_len * frequency / (2 * math.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = min(1.0, max(0.0, share))
    return frequency * (share + (1 - share) / scaling.factor)
