"""The index of a large partition: what it proposes, and that nothing but living rows is ever found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache.approximate import ApproximateIndex, lists_for
from cache.index import Build, IndexLimits, NotBuiltYet, PartitionIndex, Row
from cache.vector_table import VectorTable
from tests.cache.test_index import Clock, build

DIM = 32
LIMITS = IndexLimits(approximate_above=500, max_scanned=5000)
STATED_RECALL = 0.95
"""Of five neighbours, by 100 fresh questions; an index is built to 0.99 over 256 sampled rows."""


def clustered(count: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Make unit vectors in groups of about ten, as paraphrases are."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(max(1, count // 10), DIM))
    rows = centres[generator.integers(0, len(centres), count)] + 0.4 * generator.normal(size=(count, DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def table_of(vectors: NDArray[np.float32]) -> VectorTable:
    table = VectorTable(vectors.shape[1])
    for number, vector in enumerate(vectors):
        table.write(number, vector)
    return table


def filled(vectors: NDArray[np.float32], *, limits: IndexLimits = LIMITS, clock: Clock | None = None) -> PartitionIndex:
    index = PartitionIndex(DIM, clock=clock or Clock(), limits=limits)
    index.extend(Row(f"e{number}", vector, 2000.0) for number, vector in enumerate(vectors))
    return index


def brute_force(alive: dict[str, NDArray[np.float32]], question: NDArray[np.float32], top_k: int) -> list[str]:
    names = list(alive)
    scores = np.stack(list(alive.values())) @ question
    return [names[place] for place in np.argsort(-scores)[:top_k]]


def recall_of(index: PartitionIndex, alive: dict[str, NDArray[np.float32]], questions: NDArray[np.float32]) -> float:
    num_found = 0
    for question in questions:
        found = {candidate.entry for candidate in index.search(question, 5)}
        num_found += len(found & set(brute_force(alive, question, 5)))
    return num_found / (5 * len(questions))


def near(vectors: NDArray[np.float32], count: int, *, seed: int = 9) -> NDArray[np.float32]:
    """Make questions that lie near some of the rows, as those do that a cache can answer."""
    generator = np.random.default_rng(seed)
    rows = vectors[generator.integers(0, len(vectors), count)] + 0.05 * generator.normal(size=(count, DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


class Twin:
    """An index, beside it a dictionary that says what it should hold, and the steps that change both."""

    def __init__(self, seed: int, limits: IndexLimits) -> None:
        self.vectors = clustered(1500, seed=seed)
        self.index = filled(self.vectors[:800], limits=limits)
        self.alive = {f"e{number}": vector for number, vector in enumerate(self.vectors[:800])}
        self._generator = np.random.default_rng(seed)
        self._planned: list[tuple[Build, ApproximateIndex]] = []

    def add(self) -> None:
        for number in self._generator.integers(0, 1500, 100):
            self.index.add(Row(f"e{number}", self.vectors[number], 2000.0))
            self.alive[f"e{number}"] = self.vectors[number]

    def remove(self) -> None:
        for name in self._generator.choice(sorted(self.alive), len(self.alive) // 4, replace=False):
            assert self.index.remove(name)
            del self.alive[name]

    def plan(self) -> None:
        due = self.index.plan_build()
        self._planned += [(due, due.run())] if due is not None else []

    def install(self) -> None:
        if self._planned:
            self.index.install(*self._planned.pop())

    def compact(self) -> None:
        self.index.compact()

    def check(self, questions: NDArray[np.float32]) -> None:
        for question in questions:
            found = self.index.search(question, 5)
            cosines = [candidate.similarity for candidate in found]
            assert cosines == pytest.approx([float(self.alive[one.entry] @ question) for one in found], abs=1e-5)
            if self.index.approximate is None:
                assert [one.entry for one in found] == brute_force(self.alive, question, 5)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    limits=st.sampled_from([LIMITS, IndexLimits(approximate_above=2000)]),
    steps=st.lists(st.sampled_from(["add", "remove", "plan", "install", "compact"]), max_size=12),
)
def test_any_order_of_changes_finds_what_brute_force_finds(seed: int, limits: IndexLimits, steps: list[str]) -> None:
    twin = Twin(seed, limits)
    questions = near(twin.vectors, 40)

    for step in steps:
        getattr(twin, step)()
        twin.check(questions[:5])

    least = STATED_RECALL if twin.index.approximate is not None else 1.0
    answerable = near(np.stack(list(twin.alive.values())), 100)
    assert recall_of(twin.index, twin.alive, answerable) >= least


def test_probes_are_raised_until_sampled_rows_find_their_neighbours() -> None:
    generator = np.random.default_rng(0)
    scattered = generator.normal(size=(4000, DIM)).astype(np.float32)  # no groups at all: the hardest case
    scattered /= np.linalg.norm(scattered, axis=1, keepdims=True)

    easy = ApproximateIndex.build(table_of(clustered(4000)), np.arange(4000))
    hard = ApproximateIndex.build(table_of(scattered), np.arange(4000))

    assert easy.measured.recall >= 0.99
    assert hard.measured.recall >= 0.99 or hard.measured.num_probed == lists_for(4000)
    assert hard.measured.num_probed > easy.measured.num_probed


def test_what_changed_while_an_index_was_built_counts() -> None:
    vectors = clustered(1000)
    index = filled(vectors[:900])
    due = index.plan_build()
    assert due is not None
    built = due.run()

    index.remove("e7")
    index.add(Row("e950", vectors[950], 2000.0))  # it takes the row of e7
    index.add(Row("e951", vectors[951], 2000.0))
    index.install(due, built)

    assert index.approximate is built
    assert len(built) == len(index) == 901
    assert index.search(vectors[950], 1)[0].entry == "e950"
    assert index.search(vectors[951], 1)[0].entry == "e951"
    assert "e7" not in {candidate.entry for candidate in index.search(vectors[7], 100)}


def test_an_index_of_a_partition_that_was_compacted_meanwhile_is_let_go() -> None:
    index = filled(clustered(900))
    due = index.plan_build()
    assert due is not None
    for number in range(800):
        index.remove(f"e{number}")
    index.compact()

    index.install(due, due.run())

    assert index.approximate is None
    assert len(index) == 100


def test_rows_that_are_over_do_not_hide_those_that_live() -> None:
    clock = Clock()
    vectors = clustered(600)
    index = PartitionIndex(DIM, clock=clock, limits=LIMITS)
    near = vectors[0] + 0.001 * np.random.default_rng(5).normal(size=(300, DIM)).astype(np.float32)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    index.extend(Row(f"short{number}", vector, 1010.0) for number, vector in enumerate(near))
    index.extend(Row(f"e{number}", vector, 2000.0) for number, vector in enumerate(vectors))
    build(index)

    clock.now += 20

    assert index.search(vectors[0], 1)[0].entry == "e0"


def test_a_partition_too_large_to_look_through_says_so_until_its_index_is_built() -> None:
    index = filled(clustered(700), limits=IndexLimits(approximate_above=100, max_scanned=600))

    with pytest.raises(NotBuiltYet, match="700 entries"):
        index.search(clustered(1)[0], 5)
    build(index)

    assert len(index.search(clustered(1)[0], 5)) == 5


def test_an_index_that_has_grown_fourfold_is_built_anew() -> None:
    vectors = clustered(3000)
    index = filled(vectors[:600])
    build(index)
    first = index.approximate
    index.extend(Row(f"e{number}", vectors[number], 2000.0) for number in range(600, 2400))
    build(index)
    assert index.approximate is first

    index.add(Row("e2400", vectors[2400], 2000.0))
    build(index)

    assert index.approximate is not first
    assert index.approximate is not None
    assert index.approximate.num_built == 2401


@pytest.mark.parametrize("wrong", [{"approximate_above": 0}, {"approximate_above": 10, "max_scanned": 9}])
def test_limits_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="approximate_above"):
        IndexLimits(**wrong)


@given(writes=st.lists(st.integers(0, 30), max_size=60))
def test_a_table_keeps_what_was_written_last(writes: list[int]) -> None:
    table, model = VectorTable(2, block_rows=8), dict[int, float]()

    for value, number in enumerate(writes):
        place = min(number, len(table))
        table.write(place, np.array([value, 1.0], np.float32))
        model[place] = float(value)

    numbers = np.arange(len(model))
    assert table.gather(numbers)[:, 0].tolist() == [model[number] for number in range(len(model))]
    assert table.scores(np.array([1.0, 0.0], np.float32)).tolist() == [model[n] for n in range(len(model))]
    assert sum(len(block) for block in table.blocks()) == len(table) == len(model)
