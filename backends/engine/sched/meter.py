"""How fast the queue moves, and so when it is worth asking again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class QueueMeter:
    """Measure departures from the queue, and promise each one refused a moment of its own.

    The speed is that of the last 64 departures up to now, so it falls while nothing leaves. Promises follow one another
    at that speed: those refused together do not come back together.
    """

    def __init__(self, clock: Callable[[], float], *, max_wait_s: float = 60.0, min_wait_s: float = 0.1) -> None:
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._min_wait_s = min_wait_s
        self._departures: deque[tuple[float, int]] = deque(maxlen=64)
        self._promised_s = 0.0

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
        span_s = now_s - self._departures[0][0]
        sum_tokens = sum(tokens for _, tokens in self._departures)
        return span_s * max(1 / len(self._departures), num_tokens / max(1, sum_tokens))
