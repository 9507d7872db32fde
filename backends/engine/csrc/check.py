"""Compare the CPU kernels with plain torch on small random inputs, before anyone relies on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from backends.engine.attn.cpu import CpuPlan
from backends.engine.attn.kv_store import KvStore
from backends.engine.attn.ref import ReferencePlan
from backends.engine.csrc.build import KernelsUnavailable
from backends.engine.csrc.check_quantised import Case, close_cases, exact_cases, quantised
from backends.engine.model.llama import Llama, rotate
from backends.engine.model.packed import PackedLlama, is_packable, pack, pack_gate_up
from backends.engine.model.shape import ModelShape
from backends.engine.model.weights import LayerWeights, ModelWeights
from backends.engine.runner.batch import Batch

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.int8: 2e-2}
"""How far a kernel may be off, as a share of its largest value: the rounding of a few steps; keys and values of int8
between two integers may go either way."""

_SHAPE = ModelShape(
    vocab_size=100,
    hidden_size=96,
    intermediate_size=160,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    max_len=128,
    norm_epsilon=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    eos_ids=frozenset(),
    windows=(None, 24),
)
_ROWS = ((0, 1), (70, 1), (3, 40), (0, 17))  # start and count: decodes and prefills, across pages


@torch.inference_mode()
def check_kernels(
    shape: ModelShape, dtype: torch.dtype, quantization: str = "none", kv_dtype: torch.dtype | None = None
) -> None:
    """Raise `KernelsUnavailable` where they do not take a model of this shape, or differ from torch."""
    kv_dtype = kv_dtype or dtype
    if not is_packable(shape):
        raise KernelsUnavailable(f"they cannot compute a model of this shape: {shape}")
    random = torch.Generator().manual_seed(3)
    for case in _cases(random, dtype, kv_dtype):
        _compare(case, max(TOLERANCE[dtype], TOLERANCE[kv_dtype]))
    if quantization != "none":
        _check_quantised(random, dtype, quantization)


def _check_quantised(random: torch.Generator, dtype: torch.dtype, quantization: str) -> None:
    for case in exact_cases(random):
        _compare(case, 0.0)
    for case in close_cases(random):
        _compare(case, TOLERANCE[torch.float32])
    weights = quantised(_weights(random, dtype), quantization)
    for case in _model(random, weights, _batch(16), *_stores(random, dtype, 16)):
        _compare(case, TOLERANCE[torch.bfloat16])  # a float32 rounded otherwise is now and then another code


def _compare(case: Case, tolerance: float) -> None:
    name, given, wanted = case[0], case[1].float(), case[2].float()
    error = ((given - wanted).abs().max() / wanted.abs().max()).item()
    if not error <= tolerance:
        raise KernelsUnavailable(f"'{name}' differs from torch by {error:.2g} of its largest value")


def _cases(random: torch.Generator, dtype: torch.dtype, kv_dtype: torch.dtype) -> Iterator[Case]:
    for num_rows in (1, 3, 17, 40):  # each takes another way through the products
        yield from _products(random, dtype, num_rows)
    for page_size in (1, 16):
        batch = _batch(page_size)
        yield from _attention(random, dtype, batch, *_stores(random, kv_dtype, page_size))
        yield from _model(random, _weights(random, dtype), batch, *_stores(random, kv_dtype, page_size))


def _products(random: torch.Generator, dtype: torch.dtype, num_rows: int) -> Iterator[Case]:
    hidden = torch.randn(num_rows, 96, generator=random)
    norm = torch.randn(96, generator=random)
    x, weight = hidden.to(dtype), torch.randn(70, 96, generator=random).to(dtype)
    gate, up = weight.chunk(2)
    ops = torch.ops.lamina
    yield "norm", ops.norm(hidden, norm, 1e-5, x), F.rms_norm(hidden, (96,), norm, 1e-5)
    yield "product", ops.product(x, pack(weight), 70), F.linear(x.float(), weight.float())
    wanted = F.silu(F.linear(x.float(), gate.float())) * F.linear(x.float(), up.float())
    yield "gated", ops.gated(x, pack_gate_up(weight), 35), wanted


def _attention(
    random: torch.Generator, dtype: torch.dtype, batch: Batch, store: KvStore, plain: KvStore
) -> Iterator[Case]:
    plan, reference = CpuPlan(store, batch, num_heads=6), ReferencePlan(plain, batch)
    positions = torch.from_numpy(batch.positions)
    heads = torch.randn(len(positions), 10, 64, generator=random)
    angles = torch.randn(128, 32, generator=random)
    cosines, sines = angles.cos(), angles.sin()
    both = (torch.cat([each, each], dim=-1)[positions][:, None] for each in (cosines, sines))
    rotated = rotate(heads[:, :8], *both).to(dtype)
    queries = torch.ops.lamina.rotate(heads, rotated, cosines, sines, positions, plan.slots, *plan.stored(0))
    yield "rotate", queries, rotated[:, :6]
    reference.write_kv(0, rotated[:, 6:], heads[:, 8:].to(dtype))
    yield from (("rotate", *both) for both in zip(plan.stored(0), plain.layer(0), strict=True) if both[0].numel())
    for layer in range(_SHAPE.num_layers):  # each with a window of its own
        yield "attend", plan.attend(layer, rotated[:, :6]), reference.attend(layer, rotated[:, :6])


def _model(
    random: torch.Generator, weights: ModelWeights, batch: Batch, store: KvStore, plain: KvStore
) -> Iterator[Case]:
    tokens, positions, drawn = map(torch.from_numpy, (batch.tokens, batch.positions, batch.drawn))
    packed, llama = PackedLlama(_SHAPE, weights), Llama(_SHAPE, weights)
    given = packed.forward(tokens, positions, CpuPlan(store, batch, num_heads=6))
    wanted = llama.forward(tokens, positions, ReferencePlan(plain, batch))
    yield "layer", given, wanted
    yield "logits", packed.logits(wanted, drawn), llama.logits(wanted, drawn)


def _stores(random: torch.Generator, kv_dtype: torch.dtype, page_size: int) -> tuple[KvStore, KvStore]:
    """Return two equal stores with something in every slot."""
    num_pages, cpu = 192 // page_size, torch.device("cpu")
    first, second = (
        KvStore.allocate(_SHAPE, num_pages=num_pages, page_size=page_size, dtype=kv_dtype, device=cpu) for _ in range(2)
    )
    rows = first.rows(np.arange(192))
    for layer in range(_SHAPE.num_layers):
        keys, values = torch.randn(2, 192, _SHAPE.num_kv_heads, _SHAPE.head_dim, generator=random).to(torch.bfloat16)
        first.write(layer, rows, keys, values)
        second.write(layer, rows, keys, values)
    return first, second


def _batch(page_size: int) -> Batch:
    counts = tuple(count for _, count in _ROWS)
    lengths = [start + count for start, count in _ROWS]
    num_pages = [-(-length // page_size) for length in lengths]
    order = np.random.default_rng(3).permutation(sum(num_pages)).tolist()
    pages = [tuple(order.pop() for _ in range(count)) for count in num_pages]
    places = [(row, position) for row, (start, count) in enumerate(_ROWS) for position in range(start, start + count)]
    begins = np.cumsum(counts) - counts
    return Batch(
        tokens=np.arange(len(places)) % _SHAPE.vocab_size,
        positions=np.array([position for _, position in places]),
        slots=np.array([pages[row][at // page_size] * page_size + at % page_size for row, at in places]),
        begins=tuple(begins.tolist()),
        counts=counts,
        lengths=tuple(lengths),
        pages=tuple(pages),
        drawn=begins + np.array(counts) - 1,
        draws=(),
    )


def _weights(random: torch.Generator, dtype: torch.dtype) -> ModelWeights:
    def matrix(outputs: int, depth: int) -> torch.Tensor:
        return torch.randn(outputs, depth, generator=random).div_(depth**0.5).to(dtype)

    def layer() -> LayerWeights:
        norm = 1 + torch.randn(96, generator=random) / 8
        return LayerWeights(norm, matrix(640, 96), matrix(96, 384), norm, matrix(320, 96), matrix(96, 160))

    embedding = torch.randn(100, 96, generator=random).to(dtype)
    return ModelWeights(embedding, (layer(), layer()), 1 + torch.randn(96, generator=random) / 8, embedding, dtype)
