"""What a query finds is what plain torch finds, in any type of keys and values, and depends on its own tokens alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from backends.engine.attn.cpu import CpuPlan
from backends.engine.attn.kv_store import KvStore
from backends.engine.attn.quantise import quantise
from backends.engine.attn.ref import ReferencePlan
from backends.engine.csrc.check import TOLERANCE, check_kernels
from backends.engine.model.loader import LoadedModel
from backends.engine.model.shape import ModelShape
from backends.engine.runner.batch import Batch

pytestmark = pytest.mark.usefixtures("kernels")

F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8
TYPES = [(weights, kept) for weights in (F32, BF16) for kept in (F32, BF16, INT8)]
CPU = torch.device("cpu")
NUM_SLOTS = 1536


def _shape(*, heads: tuple[int, int] = (6, 2), dim: int = 64, window: int | None = None) -> ModelShape:
    return ModelShape(97, 64, 80, 1, *heads, dim, 2048, 1e-5, 10000.0, None, frozenset(), (window,))


@dataclass(frozen=True)
class _Pool:
    """A store with something in every slot, and the queries of one request's every position."""

    store: KvStore
    queries: torch.Tensor
    order: list[int]

    @classmethod
    def filled(cls, shape: ModelShape, *, page_size: int, dtype: torch.dtype, kept: torch.dtype) -> _Pool:
        random_numbers = torch.Generator().manual_seed(5)
        num_pages = NUM_SLOTS // page_size
        store = KvStore.allocate(shape, num_pages=num_pages, page_size=page_size, dtype=kept, device=CPU)
        size = (2, num_pages * page_size, shape.num_kv_heads, shape.head_dim)
        store.write(0, store.rows(np.arange(size[1])), *torch.randn(size, generator=random_numbers).to(dtype))
        queries = torch.randn(NUM_SLOTS, shape.num_heads, shape.head_dim, generator=random_numbers).to(dtype)
        return cls(store, queries, random.Random(3).sample(range(num_pages), num_pages))

    def batch(self, rows: Sequence[tuple[int, int]]) -> Batch:
        """Lay out rows of (start, count), all of one request: they share its pages."""
        size = self.store.page_size
        counts = [count for _, count in rows]
        positions = np.concatenate([np.arange(start, start + count) for start, count in rows])
        ends = np.cumsum(counts)
        return Batch(
            tokens=positions,
            positions=positions,
            slots=np.array(self.order)[positions // size] * size + positions % size,
            begins=tuple((ends - counts).tolist()),
            counts=tuple(counts),
            lengths=tuple(start + count for start, count in rows),
            pages=tuple(tuple(self.order[: -(-(start + count) // size)]) for start, count in rows),
            drawn=ends - 1,
            draws=(),
        )

    def found(self, rows: Sequence[tuple[int, int]], plan: type[CpuPlan] | type[ReferencePlan]) -> torch.Tensor:
        """Return what the queries of these rows find, row after row."""
        batch = self.batch(rows)
        queries = self.queries[torch.from_numpy(batch.positions)]
        if plan is ReferencePlan:
            return ReferencePlan(self.store, batch).attend(0, queries)
        return CpuPlan(self.store, batch, num_heads=queries.shape[1]).attend(0, queries)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "kept"), TYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "page_size", "window"),
    [((6, 2), 64, 16, None), ((9, 3), 64, 1, 40), ((4, 4), 128, 3, 300), ((20, 1), 96, 64, 1), ((5, 5), 8, 16, 17)],
)
def test_attention_is_the_references_in_every_type(
    dtype: torch.dtype, kept: torch.dtype, heads: tuple[int, int], dim: int, page_size: int, window: int | None
) -> None:
    shape = _shape(heads=heads, dim=dim, window=window)
    pool = _Pool.filled(shape, page_size=page_size, dtype=dtype, kept=kept)
    rows = [(0, 1), (700, 1), (255, 1), (256, 1), (500, 70), (0, 33), (250, 12)]

    found, wanted = pool.found(rows, CpuPlan).float(), pool.found(rows, ReferencePlan).float()

    limit = TOLERANCE[dtype] / (2 if dtype is BF16 else 1)
    assert (found - wanted).abs().max() <= limit * wanted.abs().max()


@pytest.mark.parametrize(("dtype", "kept"), TYPES)
@pytest.mark.parametrize("window", [None, 300])
def test_what_is_found_depends_on_no_neighbour_no_thread_and_no_cut(
    dtype: torch.dtype, kept: torch.dtype, window: int | None
) -> None:
    pool = _Pool.filled(_shape(window=window), page_size=16, dtype=dtype, kept=kept)
    with _threads(1):
        whole = pool.found([(0, 600)], CpuPlan)

    for num_threads in (1, 2):
        with _threads(num_threads):
            chunks = [(begin, min(113, 600 - begin)) for begin in range(0, 600, 113)]
            assert torch.equal(torch.cat([pool.found([chunk], CpuPlan) for chunk in chunks]), whole)
            ends = [0, 17, 255, 256, 257, 511, 599]
            alone = torch.cat([pool.found([(end, 1)], CpuPlan) for end in ends])
            assert torch.equal(pool.found([(end, 1) for end in ends], CpuPlan), alone)
            if (dtype, kept) == (BF16, BF16):  # many queries and few may go by units that round otherwise
                assert (alone - whole[ends]).abs().max() <= TOLERANCE[BF16] * whole.abs().max()
            else:
                assert torch.equal(alone, whole[ends])
            assert torch.equal(pool.found([(599, 1), (0, 600)], CpuPlan)[1:], whole)


@pytest.mark.parametrize(("dtype", "kept"), [(F32, F32), (BF16, BF16), (BF16, INT8)])
def test_what_is_found_depends_on_no_page_size(dtype: torch.dtype, kept: torch.dtype) -> None:
    rows = [(699, 1), (230, 60)]
    pools = [_Pool.filled(_shape(), page_size=size, dtype=dtype, kept=kept) for size in (1, 3, 16, 64)]
    first = pools[0]
    tokens = first.store.rows(np.array(first.order)[:700])
    keys, values = (
        kind[0].view(-1, 64)[tokens].view(700, 2, 64).float() for kind in (first.store.keys, first.store.values)
    )
    found = []
    for pool in pools:
        batch = pool.batch([(0, 700)])
        pool.store.write(0, pool.store.rows(batch.slots), keys, values)
        found.append(pool.found(rows, CpuPlan))

    assert all(torch.equal(each, found[0]) for each in found)


def test_what_is_stored_as_integers_is_the_references_to_the_bit() -> None:
    random_numbers = torch.Generator().manual_seed(2)
    shape = _shape(dim=80)
    pool, plain = (_Pool.filled(shape, page_size=16, dtype=F32, kept=INT8) for _ in range(2))
    batch = pool.batch([(0, 50)])
    heads = torch.randn(50, 10, 80, generator=random_numbers) * torch.logspace(-6, 6, 50)[:, None, None]
    heads[7] = 0
    still = torch.zeros(2048, 40)
    plan = CpuPlan(pool.store, batch, num_heads=6)

    positions = torch.from_numpy(batch.positions)
    torch.ops.lamina.rotate(heads, heads, still + 1, still, positions, plan.slots, *plan.stored(0))
    ReferencePlan(plain.store, batch).write_kv(0, heads[:, 6:8], heads[:, 8:])

    for given, wanted in zip(pool.store.layer(0), plain.store.layer(0), strict=True):
        assert torch.equal(given, wanted)


def test_a_number_comes_back_within_half_a_step() -> None:
    numbers = torch.randn(30, 4, 64, generator=torch.Generator().manual_seed(1))
    numbers[3] = 0

    integers, scales = quantise(numbers)

    assert integers.abs().amax(dim=-1)[numbers.abs().sum(dim=-1) > 0].eq(127).all()
    assert ((integers * scales[..., None] - numbers).abs() <= scales[..., None] * 0.501).all()


def test_not_a_number_stays_with_those_who_look_at_it() -> None:
    pool = _Pool.filled(_shape(), page_size=16, dtype=BF16, kept=BF16)
    pool.store.keys[0][pool.order[30]] = torch.nan  # positions 480 to 495
    pool.store.values[0][pool.order[30]] = torch.nan

    before, after = pool.found([(470, 1)], CpuPlan), pool.found([(485, 1)], CpuPlan)

    assert before.isfinite().all()
    assert after.isnan().all()


@pytest.mark.parametrize(("dtype", "kept"), [(F32, INT8), (BF16, INT8)])
def test_the_kernels_pass_their_check_in_every_type(
    tiny_model: LoadedModel, dtype: torch.dtype, kept: torch.dtype
) -> None:
    check_kernels(tiny_model.shape, dtype, kv_dtype=kept)
