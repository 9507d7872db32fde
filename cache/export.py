"""Turn a sentence-transformers folder into what the owner serves: `python -m cache.export MODEL_DIR OUT_DIR`.

The one place where torch and sentence-transformers run: a short process that loads the model as its authors define
it (pooling and normalisation are part of the graph), writes ONNX, and ends. OUT_DIR then holds `model.onnx`,
`tokenizer.json` and `encoder.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from transformers.utils import logging as transformers_logging

from cache.fusion import fuse
from cache.quantise import quantise
from orchestration.core.lifeline import report

_NUM_STEPS = 3


class _Encoder(torch.nn.Module):
    """Takes ids and mask, both (B, T) int64, and gives unit vectors (B, D)."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Run the whole chain of modules that the folder describes, as the library runs it."""
        features = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": torch.zeros_like(input_ids),
        }
        vectors: torch.Tensor = self.model(features)["sentence_embedding"]
        return torch.nn.functional.normalize(vectors, dim=-1)


def export(model_folder: Path, out: Path, *, precision: str) -> None:
    """Write the ONNX graph, the tokenizer and the description of a model into `out`, which exists."""
    transformers_logging.disable_progress_bar()  # progress goes to our own stdout
    report("progress", what="load the embedding model", done=0, total=_NUM_STEPS)
    model = SentenceTransformer(
        str(model_folder), device="cpu", local_files_only=True, model_kwargs={"attn_implementation": "eager"}
    ).eval()
    report("progress", what="export the embedding model", done=1, total=_NUM_STEPS)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        plain = Path(scratch) / "model.onnx"
        _write_graph(model, plain)
        report("progress", what="quantise the embedding model", done=2, total=_NUM_STEPS)
        if precision == "int8":
            fused = Path(scratch) / "fused.onnx"
            fuse(
                plain,
                fused,
                num_heads=_size_of(model, "num_attention_heads"),
                hidden_size=_size_of(model, "hidden_size"),
            )
            quantise(fused, out / "model.onnx")
        else:
            plain.rename(out / "model.onnx")
    shutil.copy(model_folder / "tokenizer.json", out / "tokenizer.json")
    description = {"dim": model.get_embedding_dimension(), "max_tokens": model.max_seq_length, "precision": precision}
    (out / "encoder.json").write_text(json.dumps(description))
    report("progress", what="export the embedding model", done=3, total=_NUM_STEPS)


def _size_of(model: SentenceTransformer, name: str) -> int:
    """Read a size from the transformer's description; 0, which is found in no graph, where it has none."""
    return int(getattr(getattr(model[0].auto_model, "config", None), name, 0) or 0)


def _write_graph(model: SentenceTransformer, path: Path) -> None:
    ids = torch.tensor([[101, 2054, 2003, 102], [101, 2054, 102, 0]])  # the values do not matter, the padding does
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    sizes = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracing exporter is old, and the newer one needs packages of its own
        torch.onnx.export(
            _Encoder(model),
            (ids, mask),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
            dynamic_axes={"input_ids": sizes, "attention_mask": sizes, "embedding": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(prog="python -m cache.export", description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a sentence-transformers folder")
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--precision", choices=("int8", "fp32"), default="int8")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    export(arguments.model, arguments.out, precision=arguments.precision)


if __name__ == "__main__":
    main()
