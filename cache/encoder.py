"""Texts become unit vectors: an exported sentence-transformers model under onnxruntime, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

Vectors = NDArray[np.float32]
"""Unit vectors, (n, dim) float32."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as the model reads it. With an unknown token in it, different texts can share one vector."""

    ids: tuple[int, ...]
    has_unknown: bool

    def __len__(self) -> int:
        return len(self.ids)


class Encoder:
    """Encode texts with the model in `folder`, as `cache.compiled.ensure_compiled` left it there.

    A text's vector does not depend on the others in its batch. `revision` names model, content hash and precision.
    """

    def __init__(self, folder: Path, *, num_threads: int = 1) -> None:
        description = json.loads((folder / "encoder.json").read_text())
        self.name: str = description["name"]
        self.revision: str = description["revision"]
        self.dim: int = description["dim"]
        self.max_tokens: int = description["max_tokens"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # The file truncates and pads as it was trained (at 128 for MiniLM): a cut text would match what it is not.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._unknown_id = _unknown_id(self._tokenizer)
        self._session = _open(folder / "model.onnx", num_threads)

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Return each text's ids, special ones included, however many they are."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return [Tokens(ids=tuple(found.ids), has_unknown=self._unknown_id in found.ids) for found in encodings]

    def encode(self, rows: Sequence[Tokens]) -> Vectors:
        """Return one unit vector per row of at most `max_tokens` ids; blocks, so call it from a thread."""
        longest = max(len(row) for row in rows)
        assert longest <= self.max_tokens, "the caller refuses longer texts"
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row.ids
            mask[place, : len(row)] = 1
        vectors: Vectors = self._session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        return vectors


def _open(path: Path, num_threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the engine needs the cores
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    model = json.loads(tokenizer.to_str())["model"]
    token = model.get("unk_token")
    return tokenizer.token_to_id(token) if isinstance(token, str) else None
