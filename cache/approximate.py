"""Near rows of a large partition, by FAISS: an inverted file over vectors of 8 bits a dimension.

Measured beside flat search and HNSW by `lamina bench cache-speed --scale --rivals`: HNSW takes far longer to build.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from cache.vector_table import VectorTable

_POINTS_PER_LIST = 39  # below this FAISS warns that its centres are guesses
_ITERATIONS = 8
_ADDED_AT_ONCE = 16_384
_NUM_SAMPLED = 256
_FIRST_PROBES = 8
_NEIGHBOURS = 5
_ROUNDING = 1e-5
RERANKED = 40
"""How many rows are taken by their codes, to be ranked by their vectors."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What share of the five nearest rows is found with so many lists probed, sampled rows being the questions."""

    recall: float
    num_probed: int


class ApproximateIndex:
    """Find row numbers whose vectors are near; the caller ranks them by the vectors themselves.

    `measured` is how many lists are probed and what that finds: at `build` it is raised until `target_recall` is
    reached on sampled rows, or every list is probed.
    """

    def __init__(self, dim: int, *, num_lists: int) -> None:
        library: Any = faiss  # its own annotations do not know what its wrappers add
        # The quantizer belongs to Python: it has to live as long as the index.
        self._quantizer = library.IndexFlatIP(dim)
        self._index = library.IndexIVFScalarQuantizer(
            self._quantizer, dim, num_lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False
        )
        self._index.cp.max_points_per_centroid = _POINTS_PER_LIST
        self._index.cp.niter = _ITERATIONS
        self._index.cp.min_points_per_centroid = 1
        self._parameters = library.SearchParametersIVF(nprobe=_FIRST_PROBES)
        self.num_lists = num_lists
        self.num_built = 0
        self.measured = Measured(recall=0.0, num_probed=_FIRST_PROBES)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @classmethod
    def build(
        cls, table: VectorTable, numbers: NDArray[np.int64], *, target_recall: float = 0.99, seed: int = 0
    ) -> ApproximateIndex:
        """Train on and add the rows `numbers` of the table, for a thread: it takes seconds, and the GIL seldom."""
        library: Any = faiss
        library.omp_set_num_threads(1)  # the count is each thread's own
        generator = np.random.default_rng(seed)
        num_lists = lists_for(len(numbers))
        built = cls(len(table.read(int(numbers[0]))), num_lists=num_lists)
        num_trained = min(len(numbers), num_lists * _POINTS_PER_LIST)
        built._index.train(table.gather(np.sort(generator.choice(numbers, num_trained, replace=False))))
        built._index.set_direct_map_type(library.DirectMap.Hashtable)  # so that a row is found to be taken out
        for begin in range(0, len(numbers), _ADDED_AT_ONCE):
            some = numbers[begin : begin + _ADDED_AT_ONCE]
            built.add(some, table)
        built.num_built = len(numbers)
        sampled = generator.choice(numbers, min(len(numbers), _NUM_SAMPLED), replace=False)
        built._raise_probes(table, sampled, numbers, target_recall=target_recall)
        return built

    def add(self, numbers: NDArray[np.int64], table: VectorTable) -> None:
        """Add rows that are not in it."""
        if len(numbers):
            self._index.add_with_ids(table.gather(numbers), numbers)

    def remove(self, numbers: NDArray[np.int64]) -> None:
        """Take rows out, those that are in it."""
        self._index.remove_ids(np.ascontiguousarray(numbers, np.int64))

    def search(self, vector: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        """Return at most `depth` row numbers, by their codes the nearest of the lists probed."""
        _, numbers = self._index.search(vector[None, :], depth, params=self._parameters)
        found: NDArray[np.int64] = numbers[0]
        return found[found >= 0]

    def _raise_probes(
        self, table: VectorTable, sampled: NDArray[np.int64], numbers: NDArray[np.int64], *, target_recall: float
    ) -> None:
        bars = _kth_best(table, sampled, numbers)
        num_probed = min(_FIRST_PROBES, self.num_lists)
        while True:
            self._parameters.nprobe = num_probed
            self.measured = Measured(_recall(self, table, sampled, bars), num_probed)
            if self.measured.recall >= target_recall or num_probed == self.num_lists:
                return
            num_probed = min(2 * num_probed, self.num_lists)


def lists_for(num_rows: int) -> int:
    """Return how many lists divide so many rows: about twice the square root, a power of two."""
    return 1 << max(0, round(math.log2(2 * math.sqrt(num_rows))))


def _kth_best(table: VectorTable, sampled: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return for each sampled row the similarity of its fifth neighbour, itself left out: (n,)."""
    questions = table.gather(sampled)
    kept = min(_NEIGHBOURS + 1, len(numbers))  # itself is the nearest
    best: NDArray[np.float32] = np.full((len(sampled), kept), -np.inf, np.float32)
    for begin in range(0, len(numbers), _ADDED_AT_ONCE):
        scores = questions @ table.gather(numbers[begin : begin + _ADDED_AT_ONCE]).T
        best = np.partition(np.concatenate([best, scores], axis=1), -kept, axis=1)[:, -kept:]
    return np.asarray(best.min(axis=1))


def _recall(
    index: ApproximateIndex, table: VectorTable, sampled: NDArray[np.int64], bars: NDArray[np.float32]
) -> float:
    num_found = 0
    for number, bar in zip(sampled, bars, strict=True):
        question = table.read(int(number))
        numbers = index.search(question, RERANKED)
        scores = table.gather(numbers[numbers != number]) @ question
        num_found += min(_NEIGHBOURS, int(np.count_nonzero(scores >= bar - _ROUNDING)))
    return num_found / (_NEIGHBOURS * len(sampled))
