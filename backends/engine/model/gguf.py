"""Read a GGUF file of the Llama family: shape, and tensors unpacked one at a time."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.engine.model.gguf_file import StoredTensor, open_gguf
from backends.engine.model.quant import Int4Matrix
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
        self._file = open_gguf(path)
        architecture = self._text("general.architecture", "")
        if architecture != "llama":
            raise ModelUnreadable(f"{path} holds a '{architecture}' model; this engine runs 'llama'")
        if "rope_freqs.weight" in self._file.tensors or self._text("llama.rope.scaling.type", "none") != "none":
            raise ModelUnreadable(f"{path} scales its rotary frequencies; load the model's safetensors folder instead")
        self.shape = self._read_shape()

    @property
    def is_tied(self) -> bool:
        """Tell whether the embedding serves as the head."""
        return _WHOLE["head"] not in self._file.tensors

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor unpacked to float32, under the engine's own name for it."""
        return self._unpermute(name, torch.from_numpy(self._find(name).unpack()))

    def read_int4(self, name: str) -> Int4Matrix | None:
        """Return a matrix as it is stored, under the engine's own name for it; `None` where that is not in 4 bits."""
        parts = self._find(name).unpack_int4()
        if parts is None:
            return None
        return Int4Matrix(*map(torch.from_numpy, parts)).map_rows(lambda rows: self._unpermute(name, rows))

    def _find(self, name: str) -> StoredTensor:
        stored = _WHOLE.get(name) or self._stored_name(name)
        tensor = self._file.tensors.get(stored)
        if tensor is None:
            raise ModelUnreadable(f"the GGUF file has no tensor {stored}")
        return tensor

    def _unpermute(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        match name.rsplit(".", 1)[-1]:
            case "q":
                return _unpermute(rows, self.shape.num_heads)
            case "k":
                return _unpermute(rows, self.shape.num_kv_heads)
            case _:
                return rows

    def _stored_name(self, name: str) -> str:
        _, index, part = name.split(".")
        return f"blk.{index}.{_PARTS[part]}.weight"

    def _text(self, key: str, default: str) -> str:
        return str(self._file.fields.get(key, default))

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._file.fields.get(key, default)
        if not isinstance(value, (int, float)):
            raise ModelUnreadable(f"the GGUF file has no number {key}")
        return value

    def _read_shape(self) -> ModelShape:
        num_heads = int(self._number("llama.attention.head_count"))
        hidden_size = int(self._number("llama.embedding_length"))
        stops = [int(self._number(f"tokenizer.ggml.{kind}_token_id", -1)) for kind in ("eos", "eot", "eom")]
        embedding = self._file.tensors.get(_WHOLE["embedding"])
        if embedding is None:
            raise ModelUnreadable(f"the GGUF file has no tensor {_WHOLE['embedding']}")
        return ModelShape(
            vocab_size=embedding.shape[0],
            hidden_size=hidden_size,
            intermediate_size=int(self._number("llama.feed_forward_length")),
            num_layers=int(self._number("llama.block_count")),
            num_heads=num_heads,
            num_kv_heads=int(self._number("llama.attention.head_count_kv", num_heads)),
            head_dim=int(self._number("llama.attention.key_length", hidden_size // num_heads)),
            max_len=int(self._number("llama.context_length")),
            norm_epsilon=self._number("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=self._number("llama.rope.freq_base", 10000.0),
            rope_scaling=None,
            eos_ids=frozenset(stop for stop in stops if stop >= 0),
            windows=self._read_windows(int(self._number("llama.block_count"))),
        )

    def _read_windows(self, num_layers: int) -> tuple[int | None, ...]:
        """Return each layer's window; a pattern of n says that every n-th layer looks at all."""
        window, pattern = (
            int(self._number("llama.attention.sliding_window", 0)),
            "llama.attention.sliding_window_pattern",
        )
        if not window:
            return ()
        if pattern in self._file.lists:
            raise ModelUnreadable(f"the GGUF file has a list {pattern}; load the model's safetensors folder instead")
        every = int(self._number(pattern, 0))
        is_sliding = [not every or (layer + 1) % every != 0 for layer in range(num_layers)]
        return tuple(window if slides else None for slides in is_sliding)


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Put the rows of a head from pairs (0, half, 1, half + 1, ...) back into two halves.

    GGUF files of this architecture are written for rotations of neighbouring rows; ours rotate row i with i + half.
    """
    out, width = weight.shape
    return weight.view(num_heads, out // num_heads // 2, 2, width).transpose(1, 2).reshape(out, width)
