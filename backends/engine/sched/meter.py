"""How fast the queue moves, and so when it is worth asking again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_MAX_DEPARTURES = 64
_YOUNGEST_S = 1.0


class QueueMeter:
    """Measure departures from the queue, and promise each one refused a moment of its own.

    The speed is that of the last 64 departures up to now, so it falls while nothing leaves, and of this queue alone:
    how slowly calls came one by one before it says nothing. A queue younger than a second, from which those just left
    for whom there was room, is taken to be a second old. Promises follow one another at that speed: those refused
    together do not come back together.
    """

    def __init__(self, clock: Callable[[], float], *, max_wait_s: float = 60.0, min_wait_s: float = 0.1) -> None:
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._min_wait_s = min_wait_s
        self._departures: deque[tuple[float, int]] = deque(maxlen=_MAX_DEPARTURES)
        self._promised_s = 0.0
        self._begun_s: float | None = None

    def note_beginning(self) -> None:
        """Note that somebody waits where nobody did."""
        self._departures.clear()
        self._begun_s = self._clock()

    def note_departure(self, num_tokens: int) -> None:
        """Note that a request of so many tokens left the queue to run."""
        self._departures.append((self._clock(), num_tokens))

    def retry_after_s(self, num_tokens: int) -> float:
        """Return in how many seconds the queue will have room for one more request, and for so many tokens more."""
        now_s = self._clock()
        self._promised_s = min(max(self._promised_s, now_s) + self._wait_s(now_s, num_tokens), now_s + self._max_wait_s)
        return max(self._min_wait_s, self._promised_s - now_s)

    def _wait_s(self, now_s: float, num_tokens: int) -> float:
        if not self._departures:
            return 1.0  # nothing was measured yet
        since_s = self._departures[0][0]
        if self._begun_s is not None and len(self._departures) < _MAX_DEPARTURES:
            since_s = self._begun_s
        span_s = max(_YOUNGEST_S, now_s - since_s)
        sum_tokens = sum(tokens for _, tokens in self._departures)
        return span_s * max(1 / len(self._departures), num_tokens / max(1, sum_tokens))
