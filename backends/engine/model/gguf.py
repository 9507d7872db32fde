"""Read a GGUF file of the Llama family: shape, and tensors unpacked one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from backends.engine.model.shape import ModelShape
from backends.engine.model.weights import ModelUnreadable

_PARTS = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "output": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_WHOLE = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}


class GgufModel:
    """A GGUF file, mapped into memory; raises `ModelUnreadable` for what is not one or not a Llama."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError) as exc:
            raise ModelUnreadable(f"{path} is not a GGUF file: {exc}") from exc
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise ModelUnreadable(f"{path} holds a '{architecture}' model; this engine runs 'llama'")
        if "rope_freqs.weight" in self._tensors or self._field("llama.rope.scaling.type", "none") != "none":
            raise ModelUnreadable(f"{path} scales its rotary frequencies; load the model's safetensors folder instead")
        self.shape = self._read_shape()

    @property
    def is_tied(self) -> bool:
        """Tell whether the embedding serves as the head."""
        return _WHOLE["head"] not in self._tensors

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor unpacked to float32, under the engine's own name for it."""
        stored = _WHOLE.get(name) or self._stored_name(name)
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise ModelUnreadable(f"the GGUF file has no tensor {stored}")
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        match name.rsplit(".", 1)[-1]:
            case "q":
                return _unpermute(values, self.shape.num_heads)
            case "k":
                return _unpermute(values, self.shape.num_kv_heads)
            case _:
                return values

    def _stored_name(self, name: str) -> str:
        _, index, part = name.split(".")
        return f"blk.{index}.{_PARTS[part]}.weight"

    def _field(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ModelUnreadable(f"the GGUF file has no field {key}")
        return default

    def _read_shape(self) -> ModelShape:
        num_heads = self._field("llama.attention.head_count")
        hidden_size = self._field("llama.embedding_length")
        stops = [self._field(f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("eos", "eot", "eom")]
        embedding = self._tensors.get(_WHOLE["embedding"])
        if embedding is None:
            raise ModelUnreadable(f"the GGUF file has no tensor {_WHOLE['embedding']}")
        return ModelShape(
            vocab_size=int(embedding.shape[-1]),
            hidden_size=hidden_size,
            intermediate_size=self._field("llama.feed_forward_length"),
            num_layers=self._field("llama.block_count"),
            num_heads=num_heads,
            num_kv_heads=self._field("llama.attention.head_count_kv", num_heads),
            head_dim=self._field("llama.attention.key_length", hidden_size // num_heads),
            max_len=self._field("llama.context_length"),
            norm_epsilon=self._field("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=self._field("llama.rope.freq_base", 10000.0),
            rope_scaling=None,
            eos_ids=frozenset(int(stop) for stop in stops if stop >= 0),
        )


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Put the rows of a head from pairs (0, half, 1, half + 1, ...) back into two halves.

    GGUF files of this architecture are written for rotations of neighbouring rows; ours rotate row i with i + half.
    """
    out, width = weight.shape
    return weight.view(num_heads, out // num_heads // 2, 2, width).transpose(1, 2).reshape(out, width)
