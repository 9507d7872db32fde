"""Unit vectors of the encoder's dimension that lie as texts' do: topics, intents in them, wordings of an intent.

Made, not measured: a wording has a cosine of about 0.91 to its intent and 0.83 to another wording, an intent one of 0.6
to its topic, and the directions in which they differ weigh less and less (the k-th as the root of 1 / k).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

DIM = 384
_NUM_TOPICS = 200
_WORDINGS_PER_INTENT = 20
_AT_ONCE = 50_000


class Texts:
    """Give vectors of texts: `wordings(n)` are those that are kept, `questions(n)` others of the same intents."""

    def __init__(self, num_rows: int, *, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(self._generator.normal(size=(DIM, DIM)))
        weights = np.arange(1, DIM + 1) ** -0.5
        self._directions: Vectors = (weights[:, None] * basis).astype(np.float32)
        topics = self._scattered(_NUM_TOPICS)
        num_intents = max(1, num_rows // _WORDINGS_PER_INTENT)
        of_topic = self._generator.integers(0, _NUM_TOPICS, num_intents)
        self._intents = unit(0.6 * topics[of_topic] + 0.8 * self._scattered(num_intents))

    def wordings(self, count: int) -> Iterator[Vectors]:
        """Give `count` vectors, some 50,000 at a time."""
        for begin in range(0, count, _AT_ONCE):
            yield self.questions(min(_AT_ONCE, count - begin))

    def questions(self, count: int) -> Vectors:
        """Return (count, dim) vectors of intents drawn at random."""
        intents = self._intents[self._generator.integers(0, len(self._intents), count)]
        return unit(intents + 0.45 * self._scattered(count))

    def _scattered(self, count: int) -> Vectors:
        return unit(self._generator.standard_normal((count, DIM), np.float32) @ self._directions)


def unit(rows: Vectors) -> Vectors:
    """Scale rows to length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)
