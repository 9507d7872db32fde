"""What the owner answers where its index cannot."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from cache.batcher import Batcher, BatchLimits
from cache.encoder import Encoder, Tokens
from cache.index import NotBuiltYet, Row
from cache.owner_methods import MethodError, OwnerMethods
from cache.store import StoreDown
from orchestration.core import Candidate


class Failing:
    """An index that fails in one way."""

    generation = 0

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def is_ready(self, partition: str) -> bool:
        return True

    async def ready(self, partition: str) -> None:
        pass

    async def search(self, partition: str, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        raise self._fault

    async def add(self, partition: str, row: Row) -> bool:
        raise self._fault

    async def remove_rows(self, rows: Sequence[tuple[str, str]]) -> int:
        raise self._fault

    def numbers(self) -> Mapping[str, int]:
        return {"rows": 0}


@asynccontextmanager
async def methods_of(encoder: Encoder, index: Failing) -> AsyncGenerator[OwnerMethods, None]:
    async def run(batch: Sequence[Tokens]) -> Sequence[NDArray[np.float32]]:
        return list(encoder.encode(batch))

    batcher: Batcher[Tokens, NDArray[np.float32]] = Batcher(run, limits=BatchLimits())
    batcher.start()
    try:
        yield OwnerMethods(encoder, batcher, index)
    finally:
        await batcher.aclose()


@pytest.mark.parametrize(
    ("fault", "code"), [(NotBuiltYet("40,000 entries"), "building"), (StoreDown("nobody there"), "down")]
)
async def test_a_look_up_that_the_index_cannot_answer_has_a_code_of_its_own(
    encoder: Encoder, fault: Exception, code: str
) -> None:
    async with methods_of(encoder, Failing(fault)) as methods:
        with pytest.raises(MethodError) as caught:
            await methods.by_name()["search"]({"partition": "p", "text": "what is it", "top_k": 5}, b"")

    assert caught.value.code == code


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("add", {"partition": "p", "text": "what is it", "entry": "e", "ttl_s": 10}),
        ("remove_rows", {"rows": [["p", "e"]]}),
    ],
)
async def test_a_change_that_is_not_kept_is_refused(encoder: Encoder, method: str, params: dict[str, object]) -> None:
    async with methods_of(encoder, Failing(StoreDown("nobody there"))) as methods:
        with pytest.raises(MethodError) as caught:
            await methods.by_name()[method](params, b"")

    assert caught.value.code in {"down", "store_down"}
