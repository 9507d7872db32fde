"""One large partition: every way of searching it that FAISS offers us, beside looking at all rows, and what we ship."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from cache.index import IndexLimits, PartitionIndex, Row
from lab.bench.cache.synthetic import DIM, Texts, Vectors
from lab.bench.process_tree import rss_mb

_NUM_QUESTIONS = 300
_TOP_K = 5
_DEPTH = 40
_NUM_CHANGED = 1000
_FOREVER = 4e9
_library: Any = faiss  # its own annotations do not know what its wrappers add

Numbers = NDArray[np.int64]
Search = Callable[[NDArray[np.float32]], Numbers]


@dataclass(frozen=True, slots=True)
class Way:
    """How one way of searching did: CPU times, memory beyond the vectors' own 1,536 bytes a row, and recall."""

    name: str
    build_s: float
    extra_bytes_per_row: float
    p50_us: float
    p95_us: float
    recall_at_1: float
    recall_at_5: float
    add_us: float | None = None
    remove_us: float | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """An index of FAISS': how it is made, which parameter of a search is tried with which values."""

    name: str
    make: Callable[[int], Any]
    parameters: Callable[[int], Any]
    tried: tuple[int, ...]
    can_remove: bool


def measure_large(num_rows: int, *, has_rivals: bool = True, seed: int = 0) -> list[dict[str, Any]]:
    """Measure looking at all rows and ours on one partition, and what else FAISS offers where `has_rivals`.

    A million rows take some 2 minutes of CPU time, with rivals some 15, of which HNSW's building is the most.
    """
    _library.omp_set_num_threads(1)
    texts = Texts(num_rows, seed=seed)
    vectors = np.concatenate(list(texts.wordings(num_rows)))
    questions, added = texts.questions(_NUM_QUESTIONS), texts.questions(_NUM_CHANGED)
    truth, flat = _flat(vectors, questions)
    ways = [flat, _ours(vectors, questions, added, truth)]
    for kind in _kinds(num_rows) if has_rivals else ():
        ways += _measured(kind, vectors, questions, added, truth)
    return [asdict(way) for way in ways]


def _kinds(num_rows: int) -> list[Kind]:
    eight_bits = faiss.ScalarQuantizer.QT_8bit
    product = faiss.METRIC_INNER_PRODUCT
    kinds = [Kind("FAISS flat", lambda _: _library.IndexFlatIP(DIM), lambda _: None, (0,), True)]
    for num_lists in sorted({_power_of_two(factor * num_rows**0.5) for factor in (1, 2, 4)}):
        kinds.append(
            Kind(
                f"IVF {num_lists}, 8 bits",
                lambda _, lists=num_lists: _library.IndexIVFScalarQuantizer(  # type: ignore[misc]
                    _library.IndexFlatIP(DIM), DIM, lists, eight_bits, product, False
                ),
                lambda value: _library.SearchParametersIVF(nprobe=value),
                (8, 16, 32, 64),
                True,
            )
        )
    kinds.append(
        Kind(
            "HNSW 16, 8 bits",
            lambda _: _library.IndexHNSWSQ(DIM, eight_bits, 16, product),
            lambda value: _library.SearchParametersHNSW(efSearch=value),
            (40, 64, 128),
            False,
        )
    )
    return kinds


def _flat(vectors: Vectors, questions: Vectors) -> tuple[Numbers, Way]:
    def search(question: NDArray[np.float32]) -> Numbers:
        scores = vectors @ question
        best = np.argpartition(scores, -_TOP_K)[-_TOP_K:]
        return np.asarray(best[np.argsort(-scores[best])], np.int64)

    found, times = _timed(search, questions)
    return found, Way("all rows, as ours are scanned", 0.0, 0.0, *times, 1.0, 1.0, 0.0, 0.0)


def _ours(vectors: Vectors, questions: Vectors, added: Vectors, truth: Numbers) -> Way:
    """Measure the product's own index whole: names, times of expiry and vectors are within its memory."""
    before = _memory_bytes()
    index = PartitionIndex(DIM, clock=time.time, limits=IndexLimits.above(1024))
    index.extend(Row(f"{number:064x}", vector, _FOREVER) for number, vector in enumerate(vectors))
    begun = time.thread_time()
    due = index.plan_build()
    assert due is not None, "large enough"
    built = due.run()
    build_s = time.thread_time() - begun
    index.install(due, built)
    extra = (_memory_bytes() - before) / len(vectors) - 4 * DIM
    found, times = _timed(lambda question: _numbers_of(index, question), questions)
    begun = time.thread_time()
    index.extend(Row(f"added {number}", vector, _FOREVER) for number, vector in enumerate(added))
    add_s = time.thread_time() - begun
    begun = time.thread_time()
    for number in range(_NUM_CHANGED):
        index.remove(f"added {number}")
    remove_s = time.thread_time() - begun
    name = f"ours: IVF {built.num_lists}, 8 bits, {built.measured.num_probed} probed"
    return Way(name, build_s, extra, *times, *_recall(found, truth), _each_us(add_s), _each_us(remove_s))


def _numbers_of(index: PartitionIndex, question: NDArray[np.float32]) -> Numbers:
    return np.array([int(candidate.entry, 16) for candidate in index.search(question, _TOP_K)], np.int64)


def _measured(kind: Kind, vectors: Vectors, questions: Vectors, added: Vectors, truth: Numbers) -> Iterator[Way]:
    before, begun = _memory_bytes(), time.thread_time()
    index = kind.make(len(vectors))
    _train(index, vectors)
    for begin in range(0, len(vectors), 10_000):
        index.add(vectors[begin : begin + 10_000])
    build_s = time.thread_time() - begun
    extra = (_memory_bytes() - before) / len(vectors)
    add_us, remove_us = _change(index, added, can_remove=kind.can_remove)
    for value in kind.tried:
        parameters = kind.parameters(value)

        def search(question: NDArray[np.float32], parameters: Any = parameters) -> Numbers:
            numbers = index.search(question[None, :], _DEPTH, params=parameters)[1][0]
            numbers = numbers[(numbers >= 0) & (numbers < len(vectors))]
            return np.asarray(numbers[np.argsort(-(vectors[numbers] @ question))[:_TOP_K]], np.int64)

        found, times = _timed(search, questions)
        name = kind.name + (f", {value} looked at" if value else "")
        yield Way(name, build_s, extra, *times, *_recall(found, truth), add_us, remove_us)


def _train(index: Any, vectors: Vectors) -> None:
    generator = np.random.default_rng(0)
    if hasattr(index, "cp"):
        index.cp.max_points_per_centroid, index.cp.niter = 39, 8
        index.train(vectors[generator.choice(len(vectors), min(len(vectors), 39 * index.nlist), replace=False)])
        index.set_direct_map_type(_library.DirectMap.Hashtable)
    elif not index.is_trained:
        index.hnsw.efConstruction = 80
        index.train(vectors[:50_000])


def _change(index: Any, added: Vectors, *, can_remove: bool) -> tuple[float, float | None]:
    """Return what adding, and taking out again, of one row costs."""
    first, begun = index.ntotal, time.thread_time()
    for vector in added:
        index.add(vector[None, :])
    add_us = _each_us(time.thread_time() - begun)
    if not can_remove:
        return add_us, None
    begun = time.thread_time()
    if hasattr(index, "nlist"):
        for number in range(first, first + len(added)):
            index.remove_ids(np.array([number]))
    else:  # moves all rows behind: once for all of them is what one costs
        index.remove_ids(np.arange(first, first + len(added)))
        return add_us, (time.thread_time() - begun) * 1e6
    return add_us, _each_us(time.thread_time() - begun)


def _timed(search: Search, questions: Vectors) -> tuple[Numbers, tuple[float, float]]:
    times, found = [], np.full((len(questions), _TOP_K), -1, np.int64)
    for place, question in enumerate(questions):
        begun = time.thread_time()
        numbers = search(question)
        times.append((time.thread_time() - begun) * 1e6)
        found[place, : len(numbers)] = numbers
    return found, (float(np.median(times)), float(np.quantile(times, 0.95)))


def _recall(found: Numbers, truth: Numbers) -> tuple[float, float]:
    at_5 = [len(set(mine.tolist()) & set(right.tolist())) / _TOP_K for mine, right in zip(found, truth, strict=True)]
    return float(np.mean(found[:, 0] == truth[:, 0])), float(np.mean(at_5))


def _power_of_two(value: float) -> int:
    return int(2 ** round(np.log2(value)))


def _each_us(seconds: float) -> float:
    return seconds / _NUM_CHANGED * 1e6


def _memory_bytes() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was let go is not still held
    return rss_mb() * 1e6
