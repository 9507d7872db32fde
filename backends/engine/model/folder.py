"""Read a model folder of the Llama family: `config.json` and safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from backends.engine.model.quant import Int4Matrix
from backends.engine.model.shape import ModelShape, RopeScaling
from backends.engine.model.weights import ModelUnreadable

_PARTS = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_KINDS = ("llama", "mistral", "ministral")
"""Models that compute what a Llama does; the others only look back less far."""
_WHOLE = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


class FolderModel:
    """A folder as `save_pretrained` writes it; raises `ModelUnreadable` for what is not one or not a Llama."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._config = _read_json(path / "config.json")
        self._check_kind()
        self._files = self._index()
        self.shape = self._read_shape()

    @property
    def is_tied(self) -> bool:
        """Tell whether the embedding serves as the head."""
        return bool(self._config.get("tie_word_embeddings", False)) or _WHOLE["head"] not in self._files

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor in its stored type, under the engine's own name for it."""
        stored = _WHOLE.get(name) or self._stored_name(name)
        file = self._files.get(stored)
        if file is None:
            raise ModelUnreadable(f"{self._path} has no tensor {stored}")
        with safe_open(file, framework="pt") as tensors:
            tensor: torch.Tensor = tensors.get_tensor(stored)
            return tensor

    def read_int4(self, name: str) -> Int4Matrix | None:
        """Return `None`: these files hold no matrix in 4 bits."""
        return None

    def _stored_name(self, name: str) -> str:
        _, index, part = name.split(".")
        return f"model.layers.{index}.{_PARTS[part]}.weight"

    def _index(self) -> dict[str, Path]:
        """Return the file of every tensor."""
        files: dict[str, Path] = {}
        for file in sorted(self._path.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as tensors:
                    files.update(dict.fromkeys(tensors.keys(), file))
            except (OSError, SafetensorError) as exc:
                raise ModelUnreadable(f"{file} is not a safetensors file: {exc}") from exc
        if not files:
            raise ModelUnreadable(f"{self._path} holds no .safetensors file")
        return files

    def _check_kind(self) -> None:
        kind = self._config.get("model_type")
        if kind not in _KINDS:
            raise ModelUnreadable(f"{self._path} holds a '{kind}' model; this engine runs {', '.join(_KINDS)}")
        for flag in ("attention_bias", "mlp_bias"):
            if self._config.get(flag):
                raise ModelUnreadable(f"{self._path} sets {flag}, which this engine does not compute")
        if self._config.get("hidden_act", "silu") != "silu":
            raise ModelUnreadable(f"{self._path} uses the activation {self._config['hidden_act']}; this engine silu")

    def _read_shape(self) -> ModelShape:
        config = self._config
        try:
            num_heads = config["num_attention_heads"]
            rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
            return ModelShape(
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_layers=config["num_hidden_layers"],
                num_heads=num_heads,
                num_kv_heads=config.get("num_key_value_heads") or num_heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
                max_len=config["max_position_embeddings"],
                norm_epsilon=config["rms_norm_eps"],
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
                rope_scaling=self._read_scaling(rope),
                eos_ids=self._read_eos(),
                windows=self._read_windows(config["num_hidden_layers"]),
            )
        except KeyError as exc:
            raise ModelUnreadable(f"{self._path / 'config.json'} has no {exc}") from exc

    def _read_scaling(self, rope: dict[str, Any]) -> RopeScaling | None:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "default":
            return None
        if kind != "llama3":
            raise ModelUnreadable(f"{self._path} scales its rotary frequencies by '{kind}'; this engine knows 'llama3'")
        return RopeScaling(
            factor=rope["factor"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
            original_max_len=rope["original_max_position_embeddings"],
        )

    def _read_windows(self, num_layers: int) -> tuple[int | None, ...]:
        """Return each layer's window: by `layer_types` where the config has them, else `sliding_window` for all."""
        window = self._config.get("sliding_window") if self._config.get("use_sliding_window", True) else None
        if window is None or (self._config["model_type"] == "llama" and "layer_types" not in self._config):
            return ()
        kinds = self._config.get("layer_types") or ["sliding_attention"] * num_layers
        unknown = set(kinds) - {"sliding_attention", "full_attention"}
        if unknown or len(kinds) != num_layers or window < 1:
            raise ModelUnreadable(f"{self._path} has layers of kinds that this engine does not know: {kinds}, {window}")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def _read_eos(self) -> frozenset[int]:
        generation = self._path / "generation_config.json"
        stops = _read_json(generation).get("eos_token_id") if generation.exists() else None
        stops = self._config.get("eos_token_id") if stops is None else stops
        return frozenset(stops if isinstance(stops, list) else [] if stops is None else [stops])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ModelUnreadable(f"cannot read {path}: {exc}") from exc
    if not isinstance(values, dict):
        raise ModelUnreadable(f"{path} holds no JSON object")
    return values
