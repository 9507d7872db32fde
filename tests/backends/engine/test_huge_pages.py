"""Weights keep their values in memory of their own, however many pieces that takes."""

from __future__ import annotations

import torch

from backends.engine.model.huge_pages import HugePages


def test_tensors_are_kept_aligned_and_apart() -> None:
    memory = HugePages()
    tensors = [torch.randn(37, 3), torch.randn(5, 11).bfloat16(), torch.arange(9, dtype=torch.int8)]

    kept = [memory.keep(tensor) for tensor in tensors]

    assert all(torch.equal(copy, tensor) for copy, tensor in zip(kept, tensors, strict=True))
    assert all(copy.data_ptr() % 64 == 0 and copy.is_contiguous() for copy in kept)


def test_what_does_not_fit_a_piece_gets_another_and_outlives_the_rest() -> None:
    memory = HugePages()
    large = [torch.full((40 << 20,), value, dtype=torch.uint8) for value in (1, 2)]

    first, second = (memory.keep(tensor) for tensor in large)
    del memory

    assert first[0] == first[-1] == 1
    assert second[0] == second[-1] == 2
