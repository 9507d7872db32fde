"""Which backend is asked first: the decision by strategy, a pure function of what was recorded about the moment."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

LOAD_FACTOR = 1.5
"""How far over the mean a backend may be loaded before prefix affinity passes it by."""


class Strategy(StrEnum):
    """How a model's backends share its calls."""

    ROUND_ROBIN = "round_robin"
    WEIGHTED = "weighted"
    LEAST_CONNECTIONS = "least_connections"
    LATENCY = "latency"
    COST = "cost"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Option:
    """One backend at the moment of the choice.

    `latency_ms` is the peak EWMA of the time to first content, None before the first. `credit` is what smooth
    weighting owes it. `cooled_s` is how long it is still to be left alone, 0 where it is not.
    """

    id: str
    weight: float = 1.0
    in_flight: int = 0
    latency_ms: float | None = None
    expected_usd: float = 0.0
    credit: float = 0.0
    cooled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the choice depends on: `draws` are two numbers in [0, 1), `affinity` hashes the prefix."""

    strategy: Strategy
    options: tuple[Option, ...]
    turn: int = 0
    draws: tuple[float, float] = (0.0, 0.0)
    affinity: str = ""

    def record(self) -> dict[str, Any]:
        """Write the situation as JSON's values; `situation_of` reads it back."""
        options = [
            {
                "id": one.id,
                "weight": one.weight,
                "in_flight": one.in_flight,
                "latency_ms": one.latency_ms,
                "expected_usd": one.expected_usd,
                "credit": one.credit,
                "cooled_s": one.cooled_s,
            }
            for one in self.options
        ]
        return {
            "strategy": self.strategy.value,
            "options": options,
            "turn": self.turn,
            "draws": list(self.draws),
            "affinity": self.affinity,
        }


@dataclass(frozen=True, slots=True)
class Order:
    """The decision: indices of the backends to ask, best first, and those left alone, the least bad first."""

    ready: tuple[int, ...]
    cooled: tuple[int, ...] = ()


def situation_of(record: Mapping[str, Any]) -> Situation:
    """Read back what `Situation.record` wrote."""
    return Situation(
        strategy=Strategy(record["strategy"]),
        options=tuple(Option(**one) for one in record["options"]),
        turn=record["turn"],
        draws=(record["draws"][0], record["draws"][1]),
        affinity=record["affinity"],
    )


def choose(situation: Situation) -> Order:
    """Order the backends. Those that are cooled down stand apart, whatever the strategy thinks of them."""
    options = situation.options
    ready = [index for index, one in enumerate(options) if one.cooled_s <= 0.0]
    cooled = [index for index, one in enumerate(options) if one.cooled_s > 0.0]
    cooled.sort(key=lambda index: options[index].cooled_s)
    if len(ready) > 1:
        ready = _ORDERS[situation.strategy](situation, ready)
    return Order(tuple(ready), tuple(cooled))


def credits_after(situation: Situation, order: Order) -> tuple[float, ...]:
    """Return the credits that smooth weighting leaves: each earns its weight, the chosen one pays for all.

    Source: the smooth weighted round robin of nginx 1.3.1 (2012). Backends that are left alone earn nothing.
    """
    credits = [one.credit for one in situation.options]
    if not order.ready:
        return tuple(credits)
    for index in order.ready:
        credits[index] += situation.options[index].weight
    credits[order.ready[0]] -= sum(situation.options[index].weight for index in order.ready)
    return tuple(credits)


def _round_robin(situation: Situation, ready: Sequence[int]) -> list[int]:
    turn = situation.turn % len(ready)
    return [*ready[turn:], *ready[:turn]]


def _weighted(situation: Situation, ready: Sequence[int]) -> list[int]:
    options = situation.options
    return sorted(ready, key=lambda index: -(options[index].credit + options[index].weight))


def _least_connections(situation: Situation, ready: Sequence[int]) -> list[int]:
    options = situation.options
    turned = _round_robin(situation, ready)  # equals take turns
    return sorted(turned, key=lambda index: options[index].in_flight / options[index].weight)


def _latency(situation: Situation, ready: Sequence[int]) -> list[int]:
    """Take the better of two that were drawn: all calls at once never run to the same best one.

    Sources: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001; peak EWMA times load
    as in Twitter's Finagle. One that was never measured goes first, so that it is.
    """
    options = situation.options

    def load_ms(index: int) -> float:
        one = options[index]
        return (one.latency_ms or 0.0) * (one.in_flight + 1) / one.weight

    first = int(situation.draws[0] * len(ready))
    second = int(situation.draws[1] * (len(ready) - 1))
    second += second >= first
    pair = sorted((ready[first], ready[second]), key=load_ms)
    others = sorted((index for index in ready if index not in pair), key=load_ms)
    return [*pair, *others]


def _cost(situation: Situation, ready: Sequence[int]) -> list[int]:
    turned = _round_robin(situation, ready)  # equally cheap ones take turns
    return sorted(turned, key=lambda index: situation.options[index].expected_usd)


def _prefix(situation: Situation, ready: Sequence[int]) -> list[int]:
    """Send equal beginnings to the same backend, where its prefix cache knows them, unless it is overrun.

    Weighted rendezvous hashing: a backend that comes or goes moves only its own share. The bound on load is that of
    V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016.
    """
    options = situation.options

    def rank(index: int) -> float:
        digest = hashlib.blake2b(f"{situation.affinity}\0{options[index].id}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
        return -options[index].weight / math.log(uniform)

    limit = math.ceil(LOAD_FACTOR * (sum(options[index].in_flight for index in ready) + 1) / len(ready))
    ranked = sorted(ready, key=rank, reverse=True)
    return sorted(ranked, key=lambda index: options[index].in_flight >= limit)


_ORDERS: Mapping[Strategy, Callable[[Situation, Sequence[int]], list[int]]] = {
    Strategy.ROUND_ROBIN: _round_robin,
    Strategy.WEIGHTED: _weighted,
    Strategy.LEAST_CONNECTIONS: _least_connections,
    Strategy.LATENCY: _latency,
    Strategy.COST: _cost,
    Strategy.PREFIX: _prefix,
}
