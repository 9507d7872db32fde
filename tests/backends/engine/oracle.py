"""What every engine must say: a Llama written down as plainly as can be, without cache, pages or batches."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file


class Oracle:
    """Compute all of a text anew for each token, in float32, one head after another."""

    def __init__(self, folder: Path) -> None:
        shape = json.loads((folder / "config.json").read_text())
        self._weights: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
        self._num_layers = shape["num_hidden_layers"]
        self._num_heads, self._num_kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        self._dim = shape["hidden_size"] // self._num_heads
        self._epsilon = float(shape["rms_norm_eps"])

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the likeliest next tokens, of equals the lowest id."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logprobs(tokens)[-1].argmax()))
        return tuple(tokens[len(prompt) :])

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return, for each of the T tokens, the log-probabilities (T, V) of what comes after it."""
        hidden = self._weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        for layer in range(self._num_layers):
            name = f"model.layers.{layer}."
            hidden = hidden + self._attend(name + "self_attn.", self._norm(name + "input_layernorm", hidden))
            normed = self._norm(name + "post_attention_layernorm", hidden)
            gate = torch.nn.functional.silu(self._times(name + "mlp.gate_proj", normed))
            hidden = hidden + self._times(name + "mlp.down_proj", gate * self._times(name + "mlp.up_proj", normed))
        return torch.log_softmax(self._times("lm_head", self._norm("model.norm", hidden)), dim=-1)

    def _attend(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (self._heads(self._times(f"{name}{part}_proj", hidden)) for part in "qkv")
        future = torch.ones(len(hidden), len(hidden)).triu(1).bool()
        heads = []
        for head in range(self._num_heads):
            shared = head * self._num_kv_heads // self._num_heads
            scores = self._rotate(queries[head]) @ self._rotate(keys[shared]).T / math.sqrt(self._dim)
            heads.append(scores.masked_fill(future, -math.inf).softmax(dim=-1) @ values[shared])
        return self._times(name + "o_proj", torch.cat(heads, dim=-1))

    def _heads(self, projected: torch.Tensor) -> list[torch.Tensor]:
        return [projected[:, begin : begin + self._dim] for begin in range(0, projected.shape[1], self._dim)]

    def _rotate(self, heads: torch.Tensor) -> torch.Tensor:
        """Turn dimension i with i + dim/2 by position * 10000^(-2i/dim)."""
        half = self._dim // 2
        angles = torch.arange(len(heads))[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        first, second = heads[:, :half], heads[:, half:]
        turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
        return torch.cat(turned, dim=-1)

    def _norm(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = torch.rsqrt(hidden.pow(2).mean(dim=-1, keepdim=True) + self._epsilon)
        return hidden * scale * self._weights[name + ".weight"]

    def _times(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._weights[name + ".weight"].T
