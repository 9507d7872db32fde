"""The CPU kernels compute what plain torch does, and where they cannot be had the engine says so once and goes on."""

from __future__ import annotations

import random
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.attn.cpu import CpuPlan
from backends.engine.attn.kv_store import KvStore
from backends.engine.attn.ref import ReferencePlan
from backends.engine.csrc import build
from backends.engine.csrc.build import KernelsUnavailable, load_kernels
from backends.engine.csrc.check import TOLERANCE, check_kernels
from backends.engine.model.llama import Llama
from backends.engine.model.loader import LoadedModel
from backends.engine.model.packed import PackedLlama, pack, pack_gate_up
from backends.engine.model.shape import ModelShape
from backends.engine.runner.batch import lay_out
from backends.engine.sched.decision import Decision, Draw, Row
from backends.engine.types import SamplingParams

pytestmark = pytest.mark.usefixtures("kernels")

DTYPES = [torch.float32, torch.bfloat16]
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)

row_mixes = st.lists(st.tuples(st.integers(0, 150), st.integers(1, 70)), min_size=1, max_size=6)
"""Start and count of each row: decodes where the count is 1, chunks of prompts elsewhere."""


def _shape(*, num_heads: int, num_kv_heads: int, dim: int) -> ModelShape:
    return ModelShape(97, 64, 80, 1, num_heads, num_kv_heads, dim, 256, 1e-5, 10000.0, None, frozenset())


def _decision(mix: Sequence[tuple[int, int]], page_size: int) -> Decision:
    """Write a step with these rows, their pages scattered."""
    draw = random.Random(len(mix))
    sizes = [-(-(start + count) // page_size) for start, count in mix]
    order = draw.sample(range(sum(sizes)), sum(sizes))
    rows = []
    for key, ((start, count), size) in enumerate(zip(mix, sizes, strict=True)):
        pages, order = tuple(order[:size]), order[size:]
        tokens = tuple(draw.randrange(97) for _ in range(count))
        rows.append(Row(key, start, tokens, pages, Draw(GREEDY, 0, start + count)))
    return Decision(1, tuple(rows))


def _stores(shape: ModelShape, decision: Decision, page_size: int, dtype: torch.dtype) -> list[KvStore]:
    """Return two equal stores with something in every slot."""
    num_pages = sum(len(row.pages) for row in decision.rows)
    stores = [
        KvStore.allocate(shape, num_pages=num_pages, page_size=page_size, dtype=dtype, device=torch.device("cpu"))
        for _ in range(2)
    ]
    for index in range(shape.num_layers):
        for name in ("keys", "values"):
            first, second = (getattr(store, name)[index] for store in stores)
            second.copy_(first.copy_(torch.randn(first.shape)))
    return stores


def _assert_close(given: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert given.shape == wanted.shape
    limit = TOLERANCE[dtype] * wanted.float().abs().max()
    assert (given.float() - wanted.float()).abs().max() <= limit


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(
    mix=row_mixes,
    page_size=st.sampled_from([1, 5, 16, 32]),
    heads=st.sampled_from([(1, 1), (4, 4), (9, 3), (20, 1)]),
    dim=st.sampled_from([8, 64, 80, 128]),
)
def test_attention_is_the_references(
    dtype: torch.dtype, mix: list[tuple[int, int]], page_size: int, heads: tuple[int, int], dim: int
) -> None:
    num_heads, num_kv_heads = heads
    decision = _decision(mix, page_size)
    batch = lay_out(decision, page_size=page_size)
    torch.manual_seed(len(mix))
    shape = _shape(num_heads=num_heads, num_kv_heads=num_kv_heads, dim=dim)
    store, plain = _stores(shape, decision, page_size, dtype)
    queries = torch.randn(len(batch.tokens), num_heads, dim).to(dtype)
    new = torch.randn(2, len(batch.tokens), num_kv_heads, dim).to(dtype)
    plan, reference = CpuPlan(store, batch, num_heads=num_heads), ReferencePlan(plain, batch)

    plan.write_kv(0, *new)
    reference.write_kv(0, *new)

    assert torch.equal(store.keys[0], plain.keys[0])
    assert torch.equal(store.values[0], plain.values[0])
    _assert_close(plan.attend(0, queries), reference.attend(0, queries), dtype)


@settings(max_examples=25, deadline=None)
@given(mix=row_mixes, page_size=st.sampled_from([1, 16]))
def test_a_whole_model_is_the_references(tiny_model: LoadedModel, mix: list[tuple[int, int]], page_size: int) -> None:
    decision = _decision(mix, page_size)
    batch = lay_out(decision, page_size=page_size)
    store, plain = _stores(tiny_model.shape, decision, page_size, torch.float32)
    tokens, positions, drawn = map(torch.from_numpy, (batch.tokens, batch.positions, batch.drawn))
    packed = PackedLlama(tiny_model.shape, tiny_model.weights)
    llama = Llama(tiny_model.shape, tiny_model.weights)

    given_hidden = packed.forward(tokens, positions, CpuPlan(store, batch, num_heads=tiny_model.shape.num_heads))
    hidden = llama.forward(tokens, positions, ReferencePlan(plain, batch))

    _assert_close(given_hidden, hidden, torch.float32)
    _assert_close(torch.cat(store.keys), torch.cat(plain.keys), torch.float32)
    _assert_close(packed.logits(given_hidden, drawn), llama.logits(hidden, drawn), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None)
@given(num_rows=st.integers(1, 70), depth=st.sampled_from([2, 32, 50, 96]), width=st.sampled_from([1, 31, 32, 70]))
def test_products_are_those_of_torch(dtype: torch.dtype, num_rows: int, depth: int, width: int) -> None:
    torch.manual_seed(num_rows)
    x, weight = torch.randn(num_rows, depth).to(dtype), torch.randn(2 * width, depth).to(dtype)
    gate, up = (x.float() @ part.float().T for part in weight.chunk(2))

    product = torch.ops.lamina.product(x, pack(weight), 2 * width)
    gated = torch.ops.lamina.gated(x, pack_gate_up(weight), width)

    _assert_close(product, x.float() @ weight.float().T, dtype)
    _assert_close(gated, torch.nn.functional.silu(gate) * up, dtype)


def test_a_row_of_not_numbers_stays_alone() -> None:
    x = torch.randn(40, 64)
    x[7] = torch.nan

    for dtype in DTYPES:
        product = torch.ops.lamina.product(x.to(dtype), pack(torch.randn(64, 64).to(dtype)), 64)

        assert torch.isfinite(product).all(dim=1).tolist() == [row != 7 for row in range(40)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_pass_their_check(tiny_model: LoadedModel, dtype: torch.dtype) -> None:
    check_kernels(tiny_model.shape, dtype)


def test_a_shape_that_the_kernels_cannot_take_is_told(tiny_model: LoadedModel) -> None:
    odd = _shape(num_heads=1, num_kv_heads=1, dim=7)

    with pytest.raises(KernelsUnavailable, match="head_dim=7"):
        check_kernels(odd, torch.float32)


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'cannot compile this' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")

    with pytest.raises(KernelsUnavailable, match="the compiler failed: cannot compile this"):
        load_kernels(tmp_path / "compiled", progress=lambda what, done, total: None)

    assert list((tmp_path / "compiled").iterdir()) == []


def test_no_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(KernelsUnavailable, match=r"no C\+\+ compiler is here"):
        load_kernels(tmp_path, progress=lambda what, done, total: None)


def test_what_is_compiled_already_needs_no_compiler(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (library,) = (path for path in kernels.iterdir() if build._fingerprint() in path.name)
    shutil.copy(library, tmp_path)
    monkeypatch.setenv("PATH", "")

    load_kernels(tmp_path, progress=lambda what, done, total: pytest.fail("it was compiled again"))
