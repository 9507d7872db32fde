from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache.approximate import ApproximateIndex
from cache.index import Build, IndexLimits, PartitionIndex, Row
from cache.partitions import Partitions

DIM = 8


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def vector(seed: int) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return values / np.float32(np.linalg.norm(values))


def row(number: int, *, ends_in_s: float = 100.0, now: float = 1000.0) -> Row:
    return Row(f"e{number}", vector(number), now + ends_in_s)


def index_of(rows: list[Row], *, approximate_above: int, clock: Clock | None = None) -> PartitionIndex:
    index = PartitionIndex(DIM, clock=clock or Clock(), limits=IndexLimits(approximate_above=approximate_above))
    index.extend(rows)
    build(index)
    return index


def build(index: PartitionIndex) -> None:
    """Build what is due, as the thread aside does."""
    due = index.plan_build()
    if due is not None:
        index.install(due, due.run())


BOTH_FORMS = pytest.mark.parametrize("approximate_above", [1000, 4], ids=["scanned", "approximate"])


@BOTH_FORMS
def test_the_nearest_come_first_with_their_cosines(approximate_above: int) -> None:
    rows = [row(number) for number in range(20)]
    index = index_of(rows, approximate_above=approximate_above)

    found = index.search(vector(7), 3)

    expected = sorted(((float(one.vector @ vector(7)), one.entry) for one in rows), reverse=True)[:3]
    assert [candidate.entry for candidate in found] == [entry for _, entry in expected]
    assert [candidate.similarity for candidate in found] == pytest.approx([cosine for cosine, _ in expected], abs=1e-6)


@BOTH_FORMS
def test_a_removed_entry_is_not_found_and_the_others_keep_their_names(approximate_above: int) -> None:
    index = index_of([row(number) for number in range(20)], approximate_above=approximate_above)

    assert index.remove("e3")
    assert not index.remove("e3")

    for number in range(20):
        nearest = index.search(vector(number), 1)[0].entry
        assert nearest == f"e{number}" if number != 3 else nearest != "e3"


@BOTH_FORMS
def test_an_expired_row_is_never_found(approximate_above: int) -> None:
    clock = Clock()
    index = index_of([row(n, ends_in_s=10 + n) for n in range(10)], approximate_above=approximate_above, clock=clock)

    clock.now += 15

    assert {candidate.entry for candidate in index.search(vector(0), 10)} == {f"e{n}" for n in range(6, 10)}


@BOTH_FORMS
def test_adding_an_entry_again_replaces_it(approximate_above: int) -> None:
    index = index_of([row(number) for number in range(6)], approximate_above=approximate_above)

    index.add(Row("e2", vector(99), 2000.0))

    assert len(index) == 6
    assert index.search(vector(99), 1)[0].entry == "e2"
    assert index.search(vector(2), 1)[0].entry != "e2"


@BOTH_FORMS
def test_the_newer_of_two_equals_comes_first(approximate_above: int) -> None:
    index = index_of([row(number) for number in range(6)], approximate_above=approximate_above)

    index.add(Row("newer", vector(1), 2000.0))

    assert [candidate.entry for candidate in index.search(vector(1), 2)] == ["newer", "e1"]


def test_an_empty_index_finds_nothing() -> None:
    assert index_of([], approximate_above=4).search(vector(0), 5) == ()


steps = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "wait", "compact", "plan", "install"]), st.integers(0, 9)), max_size=60
)


@given(steps=steps, approximate_above=st.sampled_from([3, 1000]))
def test_whatever_happens_the_index_finds_what_a_plain_dictionary_finds(
    steps: list[tuple[str, int]], approximate_above: int
) -> None:
    clock = Clock()
    index = PartitionIndex(DIM, clock=clock, limits=IndexLimits(approximate_above=approximate_above))
    model: dict[str, Row] = {}
    planned: list[tuple[Build, ApproximateIndex]] = []

    for step, number in steps:
        match step:
            case "add":
                added = row(number, ends_in_s=5.0 + number, now=clock.now)
                index.add(added)
                model[added.entry] = added
            case "remove":
                index.remove(f"e{number}")
                model.pop(f"e{number}", None)
            case "wait":
                clock.now += number
            case "plan":
                due = index.plan_build()
                planned += [(due, due.run())] if due is not None else []
            case "install":
                if planned:
                    index.install(*planned.pop())
            case _:
                index.compact()
        alive = {entry for entry, kept in model.items() if kept.expires_at > clock.now}
        assert {candidate.entry for candidate in index.search(vector(0), 100)} == alive
        assert {kept.entry for kept in index.rows()} == alive


def test_the_least_used_partition_leaves_when_rows_are_too_many() -> None:
    partitions = Partitions(DIM, clock=Clock(), max_rows=4)
    for number in range(4):
        partitions.add("ab"[number % 2], row(number))
    partitions.search("a", vector(0), 1)

    partitions.add("a", row(9))

    assert "a" in partitions
    assert "b" not in partitions
    assert partitions.num_rows == 3


def test_partitions_never_see_one_another() -> None:
    partitions = Partitions(DIM, clock=Clock())
    partitions.add("a", row(1))
    partitions.add("b", row(2))

    assert [candidate.entry for candidate in partitions.search("a", vector(2), 5)] == ["e1"]


def test_sweeping_names_what_was_over() -> None:
    clock = Clock()
    partitions = Partitions(DIM, clock=clock)
    partitions.add("a", row(1, ends_in_s=5))
    partitions.add("a", row(2, ends_in_s=50))

    clock.now += 10

    assert partitions.sweep(partitions.names()) == {"a": ["e1"]}
    assert partitions.num_rows == 1


def test_every_change_counts_up_the_generation() -> None:
    partitions = Partitions(DIM, clock=Clock())
    partitions.add("a", row(1))
    before = partitions.generation

    partitions.remove("a", "e1")

    assert partitions.generation == before + 1
