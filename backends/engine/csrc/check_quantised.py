"""Compare the kernels over quantised matrices with plain torch: sums of integers must be equal, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from backends.engine.model.packed import pack, pack_gate_up
from backends.engine.model.quant import linear, quantise_rows, to_int4, to_int8
from backends.engine.model.weights import LayerWeights, ModelWeights

_DEPTH, _WIDTH = 96, 70

Case = tuple[str, torch.Tensor, torch.Tensor]
"""A kernel's name, what it gave, and what torch gives."""


def exact_cases(random: torch.Generator) -> Iterator[Case]:
    """Yield what must be equal: codes, scales, products with 8 bits, and each row alone as in its batch."""
    ops = torch.ops.lamina
    eight = to_int8(torch.randn(_WIDTH, _DEPTH, generator=random))
    four = to_int4(torch.randn(_WIDTH, _DEPTH, generator=random))
    packed_four = pack(four)
    for num_rows in (1, 3, 17, 40):  # each takes another way through the products
        x = torch.randn(num_rows, _DEPTH, generator=random)
        codes, scales = ops.quantise(x)
        plain_codes, plain_scales = quantise_rows(x)
        yield "quantise", codes, plain_codes
        yield "quantise", scales, plain_scales
        yield "int8 product", ops.product(x, pack(eight), _WIDTH), linear(x, eight)
        alone = [ops.product(row[None], packed_four, _WIDTH) for row in x]
        yield "int4 product", ops.product(x, packed_four, _WIDTH), torch.cat(alone)
    tokens = torch.tensor([0, 69, 33])
    yield "embed", ops.embed(tokens, pack(eight), _DEPTH), eight.rows(tokens)


def close_cases(random: torch.Generator) -> Iterator[Case]:
    """Yield what may differ by the rounding of float32: groups' sums, and the gates' exponential."""
    ops = torch.ops.lamina
    values = torch.randn(_WIDTH, _DEPTH, generator=random)
    for num_rows in (1, 3, 17, 40):
        x = torch.randn(num_rows, _DEPTH, generator=random)
        for name, matrix in (("int8", to_int8(values)), ("int4", to_int4(values))):
            gate, up = linear(x, matrix).chunk(2, dim=-1)
            yield f"{name} gated", ops.gated(x, pack_gate_up(matrix), _WIDTH // 2), F.silu(gate) * up
            yield f"{name} product", ops.product(x, pack(matrix), _WIDTH), linear(x, matrix)


def quantised(weights: ModelWeights, quantization: str) -> ModelWeights:
    """Return a plain model's weights, quantised as the loader would."""
    kind = to_int8 if quantization == "int8" else to_int4

    def layer(plain: LayerWeights) -> LayerWeights:
        parts = (plain.qkv, plain.output, plain.gate_up, plain.down)
        matrices = [kind(part) for part in parts if isinstance(part, torch.Tensor)]
        qkv, output, gate_up, down = matrices
        return LayerWeights(plain.attention_norm, qkv, output, plain.mlp_norm, gate_up, down)

    assert isinstance(weights.head, torch.Tensor)
    head = to_int8(weights.head)
    return ModelWeights(head, tuple(map(layer, weights.layers)), weights.norm, head, weights.dtype)
