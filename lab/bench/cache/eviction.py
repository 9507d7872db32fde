"""Which entries leave a full cache: by what they are worth per byte, or by time and use alone, over the same requests.

The requests are those of the streams; a hit is the nearest entry at a cosine of `BAR` or more, and saves its price
where its intent is the request's. An answer's length is log-normal, drawn by its text; its model by its intent: with
`two` prices every other intent is asked of a model that is 20 times as dear, with `one` price all are. In the
`shifting` streams the popularity of the intents is dealt anew after half of the requests. Hits are counted from the
first quarter on, when the cache is full.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from cache.worth import PRICE_POWER, plus, score
from lab.bench.cache.embedding import Vectors
from lab.bench.cache.streams import STREAMS, Request, make_stream

BAR = 0.8
CAPACITIES = (0.05, 0.1, 0.2)
PRICES: Mapping[str, tuple[float, float]] = {"two": (5e-7, 1e-5), "one": (1e-5, 1e-5)}
_LOG_TOKENS, _SPREAD = 5.3, 0.8
_BYTES_PER_TOKEN, _LEAST_BYTES = 4, 400

Answer = tuple[float, int]
"""What a call costs in dollars, and how many bytes its answer has."""


@dataclass(slots=True)
class Kept:
    """One entry with its history; `worth` is the sum of its uses as log2, `pressure` the one by greedy-dual's rule."""

    usd: float
    size_bytes: int
    stored_at: int
    used_at: int
    uses: int
    worth: float
    pressure: float


@dataclass(frozen=True, slots=True)
class Policy:
    """What keeps an entry: the least by `rank` leaves. `power` is how much its price counts in `worth`."""

    rank: Callable[[Kept], float]
    power: float = PRICE_POWER


POLICIES: Mapping[str, Policy] = {
    "fifo": Policy(lambda kept: kept.stored_at),
    "lru": Policy(lambda kept: kept.used_at),
    "lfu": Policy(lambda kept: kept.uses + kept.used_at / 1e9),
    "greedy-dual": Policy(lambda kept: kept.pressure, power=1.0),
    "worth": Policy(lambda kept: kept.worth),
    "worth, full price": Policy(lambda kept: kept.worth, power=1.0),
    "worth, no price": Policy(lambda kept: kept.worth, power=0.0),
}


def measure_eviction(vectors: Vectors, *, num_requests: int, seed: int) -> list[dict[str, Any]]:
    """Run every policy at every capacity over every stream; one row each, `saved` as a share of what all calls cost."""
    rows = []
    for name in STREAMS:
        steady = make_stream(name, vectors, num_requests=num_requests, seed=seed)
        half = num_requests // 2
        shifting = steady[:half] + make_stream(name, vectors, num_requests=num_requests - half, seed=seed + 100)
        for variant, stream in (("steady", steady), ("shifting", shifting)):
            for prices, (cheap, dear) in PRICES.items():
                world = _World(stream, cheap=cheap, dear=dear)
                given = {"stream": name, "variant": variant, "prices": prices}
                rows += [{**given, **row} for row in _measured(world)]
    return rows


def show_eviction(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print, by variant and prices, the mean over streams and capacities."""
    shown = Table("policy", *(Column(name, justify="right") for name in ("right hits", "wrong hits", "saved")))
    for variant, prices in itertools.product(("steady", "shifting"), PRICES):
        shown.add_section()
        shown.add_row(f"[bold]{variant}, {prices} price{'s' * (prices == 'two')}")
        some = [row for row in rows if (row["variant"], row["prices"]) == (variant, prices)]
        for policy in dict.fromkeys(row["policy"] for row in some):
            mine = [row for row in some if row["policy"] == policy]
            means = (statistics.fmean(row[name] for row in mine) for name in ("right", "wrong", "saved"))
            shown.add_row(policy, *(f"{100 * mean:.1f} %" for mean in means))
    Console(width=100).print(shown)


def _measured(world: _World) -> list[dict[str, Any]]:
    whole = world.run(math.inf, POLICIES["fifo"])
    rows = [{"policy": "no bound", "capacity": None, **whole.figures()}]
    for capacity in CAPACITIES:
        for name, policy in POLICIES.items():
            outcome = world.run(capacity * whole.peak_bytes, policy)
            rows.append({"policy": name, "capacity": capacity, **outcome.figures()})
    return rows


@dataclass(slots=True)
class _Outcome:
    num_counted: int = 0
    right: int = 0
    wrong: int = 0
    saved_usd: float = 0.0
    asked_usd: float = 0.0
    peak_bytes: int = 0

    def figures(self) -> dict[str, float]:
        return {
            "right": self.right / self.num_counted,
            "wrong": self.wrong / self.num_counted,
            "saved": self.saved_usd / self.asked_usd,
        }


@dataclass(slots=True)
class _Cache:
    """The entries by the place of their text, and the clocks of the policies."""

    kept: dict[int, Kept] = field(default_factory=dict)
    size_bytes: int = 0
    turns: float = 0.0
    floor: float = 0.0  # greedy-dual's: the pressure of what left last

    def store(self, place: int, answer: Answer, now: int, policy: Policy) -> None:
        usd, size_bytes = answer
        self.turns += 1.0 / (len(self.kept) + 1)
        worth = score(worth_usd=usd, size_bytes=size_bytes, turns=self.turns, power=policy.power)
        pressure = self.floor + usd**policy.power / size_bytes
        self.kept[place] = Kept(usd, size_bytes, now, now, 1, worth, pressure)
        self.size_bytes += size_bytes

    def use(self, place: int, now: int, policy: Policy) -> None:
        kept = self.kept[place]
        kept.used_at = now
        kept.uses += 1
        gained = score(worth_usd=kept.usd, size_bytes=kept.size_bytes, turns=self.turns, power=policy.power)
        kept.worth = plus(kept.worth, gained)
        kept.pressure = self.floor + kept.uses * kept.usd**policy.power / kept.size_bytes

    def drop_least(self, policy: Policy) -> int:
        least = min(self.kept, key=lambda place: policy.rank(self.kept[place]))
        gone = self.kept.pop(least)
        self.size_bytes -= gone.size_bytes
        self.floor = max(self.floor, gone.pressure)
        return least


class _World:
    """One stream, with every text's neighbours and answer known."""

    def __init__(self, stream: Sequence[Request], *, cheap: float, dear: float) -> None:
        self._stream = stream
        texts = list(dict.fromkeys(request.text for request in stream))
        self._places = {text: place for place, text in enumerate(texts)}
        by_text = {request.text: request for request in stream}
        self._intents = [by_text[text].intent for text in texts]
        vectors = np.stack([by_text[text].vector for text in texts])
        self._cosines: NDArray[np.float32] = vectors @ vectors.T
        self._answers = [
            _answer_of(text, usd_per_token=dear if _is_dear(intent) else cheap)
            for text, intent in zip(texts, self._intents, strict=True)
        ]

    def run(self, capacity_bytes: float, policy: Policy) -> _Outcome:
        """Answer the stream with an empty cache of this size."""
        cache, outcome = _Cache(), _Outcome()
        alive = np.zeros(len(self._places), np.bool_)
        for now, request in enumerate(self._stream):
            place = self._places[request.text]
            found = self._nearest(place, alive)
            if now >= len(self._stream) // 4:
                self._count(outcome, place, found)
            if found is not None:
                cache.use(found, now, policy)
                continue
            cache.store(place, self._answers[place], now, policy)
            alive[place] = True
            while cache.size_bytes > capacity_bytes:
                alive[cache.drop_least(policy)] = False
            outcome.peak_bytes = max(outcome.peak_bytes, cache.size_bytes)
        return outcome

    def _nearest(self, place: int, alive: NDArray[np.bool_]) -> int | None:
        cosines = np.where(alive, self._cosines[place], -1.0)
        best = int(np.argmax(cosines))
        return best if cosines[best] >= BAR else None

    def _count(self, outcome: _Outcome, place: int, found: int | None) -> None:
        usd = self._answers[place][0]
        outcome.num_counted += 1
        outcome.asked_usd += usd
        if found is None:
            return
        if self._intents[found] == self._intents[place]:
            outcome.right += 1
            outcome.saved_usd += usd
        else:
            outcome.wrong += 1


def _answer_of(text: str, *, usd_per_token: float) -> Answer:
    """Draw an answer's length, the same in every run."""
    draw = random.Random(hashlib.sha256(text.encode()).digest())
    tokens = max(1, round(draw.lognormvariate(_LOG_TOKENS, _SPREAD)))
    return tokens * usd_per_token, _LEAST_BYTES + tokens * _BYTES_PER_TOKEN


def _is_dear(intent: str) -> bool:
    return hashlib.sha256(intent.encode()).digest()[0] % 2 == 1
