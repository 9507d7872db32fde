"""Which backends are asked for one call, in which order: decided as late as possible, and written down."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from orchestration.core.balance import Option, Order, Situation, Strategy, choose, credits_after
from orchestration.core.call import Call
from orchestration.core.request import Request
from orchestration.core.route import Route, Target
from orchestration.core.standing import Standings
from orchestration.core.value import value

PREFIX_CHARS = 1024
_ANSWER_TOKENS = 256
_CHARS_PER_TOKEN = 4
ROUTING = "routing"
"""The key of `call.notes.extra` that holds every decision about where the call went, with its inputs."""


@value
class Try:
    """One try to be made: `repeat` counts how often this backend was asked before for this call.

    `is_first` marks the route's first one; `spare` is its next backend, for a second try beside a slow first one.
    """

    route: Route
    target: Target
    repeat: int
    is_fallback: bool
    spare: Target | None = None
    is_first: bool = False


class Tries:
    """Order the backends of routes: those that are left alone come last of all, after every fallback."""

    def __init__(self, routes: Mapping[str, Route], standings: Standings, *, rng: random.Random) -> None:
        self._standings = standings
        self._rng = rng
        self._targets = {name: route.targets() for name, route in routes.items()}
        self._turns = {name: itertools.count() for name in routes}
        self._credits = {name: (0.0,) * len(targets) for name, targets in self._targets.items()}

    def of(self, call: Call, routes: Iterator[Route]) -> Iterator[Try]:
        """Give one try after the other; each route is looked at only when all tries before it have failed."""
        alone: list[Try] = []
        for place, route in enumerate(routes):
            targets = self._targets[route.model]
            order = self._order(call, route, targets)
            for at, index in enumerate(order.ready):
                spare = targets[order.ready[at + 1]] if at + 1 < len(order.ready) else None
                for repeat in range(1 + route.retries):
                    is_first = at == 0 and repeat == 0
                    yield Try(route, targets[index], repeat, is_fallback=place > 0, spare=spare, is_first=is_first)
            alone += [
                Try(route, targets[index], repeat, is_fallback=place > 0)
                for index in order.cooled
                for repeat in range(1 + route.retries)
            ]
        yield from alone

    def _order(self, call: Call, route: Route, targets: tuple[Target, ...]) -> Order:
        now_s = self._standings.clock()
        if len(targets) == 1:
            is_cooled = self._standings.of(targets[0].id).cooled_s(now_s) > 0.0
            return Order((), (0,)) if is_cooled else Order((0,))
        situation = self._situation(call, route, targets, now_s)
        order = choose(situation)
        if route.strategy is Strategy.WEIGHTED:
            self._credits[route.model] = credits_after(situation, order)
        decision = {"model": route.model, **situation.record(), "ready": order.ready, "cooled": order.cooled}
        note_of(call).setdefault("orders", []).append(decision)
        return order

    def _situation(self, call: Call, route: Route, targets: tuple[Target, ...], now_s: float) -> Situation:
        credits = self._credits[route.model]
        answer_tokens = _answer_tokens(call.request) if route.strategy is Strategy.COST else 0
        prompt = _prompt_chars(call.request) // _CHARS_PER_TOKEN if route.strategy is Strategy.COST else 0
        options = []
        for target, credit in zip(targets, credits, strict=True):
            standing = self._standings.of(target.id)
            options.append(
                Option(
                    id=target.id,
                    weight=target.weight,
                    in_flight=standing.in_flight,
                    latency_ms=standing.latency.value_ms,
                    expected_usd=(prompt * target.price.input_per_1m + answer_tokens * target.price.output_per_1m)
                    / 1e6,
                    credit=credit,
                    cooled_s=standing.cooled_s(now_s),
                )
            )
        return Situation(
            strategy=route.strategy,
            options=tuple(options),
            turn=next(self._turns[route.model]),
            draws=(self._rng.random(), self._rng.random()),
            affinity=affinity_of(call) if route.strategy is Strategy.PREFIX else "",
        )


def note_of(call: Call) -> dict[str, Any]:
    """Return the call's routing notes, begun where there are none."""
    note: dict[str, Any] = call.notes.extra.setdefault(ROUTING, {})
    return note


def without_text(note: Mapping[str, Any]) -> dict[str, Any]:
    """Copy routing notes for a log that keeps no texts: a prefix's hash is left out, as short texts can be guessed."""
    orders = [{**order, "affinity": None if order["affinity"] else ""} for order in note.get("orders", ())]
    return {**note, **({"orders": orders} if orders else {})}


def affinity_of(call: Call) -> str:
    """Hash the tenant and the first `PREFIX_CHARS` of the conversation: what a prefix cache would find again."""
    text = "".join(_beginnings(call.request))[:PREFIX_CHARS]
    return hashlib.blake2b(f"{call.tenant}\0{text}".encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _beginnings(request: Request) -> Iterator[str]:
    left = PREFIX_CHARS
    for piece in itertools.chain(_prompts(request), _messages(request)):
        if left <= 0:
            return
        yield piece[:left]
        left -= len(piece)


def _prompts(request: Request) -> Iterator[str]:
    prompt = request.fields.get("prompt")
    if prompt is not None:
        yield prompt if isinstance(prompt, str) else str(prompt)


def _messages(request: Request) -> Iterator[str]:
    for message in request.messages:
        yield f"\x01{message.get('role')}\x02{message.get('content')}"


def _prompt_chars(request: Request) -> int:
    return sum(len(piece) for piece in itertools.chain(_prompts(request), _messages(request)))


def _answer_tokens(request: Request) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = request.fields.get(name)
        if isinstance(limit, int):
            return limit
    return _ANSWER_TOKENS
