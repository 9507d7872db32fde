"""Fewer and larger operations for an exported encoder: whole attentions, biases with their activation.

A question of 14 tokens is so little that an operation costs more to begin than to do. What onnxruntime's patterns
do not find in a model stays as it was exported.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model


def fuse(source: Path, target: Path, *, num_heads: int, hidden_size: int) -> None:
    """Write `source` with the same results, but for the order of additions, from fewer operations."""
    options = FusionOptions("bert")
    options.use_multi_head_attention = True  # it leaves the products by constants alone, which are to be quantised
    options.enable_embed_layer_norm = False  # it takes int32 ids alone
    options.enable_skip_layer_norm = False  # on a CPU it takes three times as long as an addition and the plain one
    fused = optimize_model(
        str(source),
        model_type="bert",
        num_heads=num_heads,
        hidden_size=hidden_size,
        optimization_options=options,
        opt_level=0,
    )
    onnx.save(fused.model, str(target))
