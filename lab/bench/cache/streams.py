"""Requests one after another: Zipf over the intents of public data sets, each policy with an empty cache at first.

A hit is right where entry and request have one intent; requests out of scope have an intent of their own each. A miss
calls the model, so the answer of the nearest entry can be compared off the path: every miss gives a label, and so does
a twentieth of the hits, re-asked. Labels are taken to be true. Entries: every miss, but for vCache, whose authors
store a question only where its neighbour's answer was wrong.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.decide import objection
from cache.examiner import Examiner
from cache.guard import Guard, load_guard
from cache.policies.calibrated import CalibratedPolicy
from cache.policies.features import Features, features_of
from cache.policies.policy import Label, Policy
from cache.policies.scorer import load_model
from cache.policies.static import StaticPolicy
from cache.policies.vcache import VCachePolicy
from lab.bench.cache.embedding import Vector, Vectors
from lab.bench.cache.pairs import SHIPPED, Share
from orchestration.core import Candidate

STREAMS = ("banking77", "clinc150")
BUDGETS = (0.01, 0.02, 0.05)
SHADOW_SHARE = 0.05
TOP_K = 3
_OUT_OF_SCOPE = "oos"
_STATIC_BARS = tuple(0.5 + number / 50.0 for number in range(26))
_SAFE_BAR = 0.95
_EXPONENT = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request; only `text` and its vector reach a policy."""

    text: str
    intent: str
    vector: Vector


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one request."""

    is_hit: bool
    is_wrong: bool


def measure_stream(name: str, vectors: Vectors, *, num_requests: int, seed: int) -> dict[str, Any]:
    """Run every policy over one stream and count the second half of each run."""
    stream = make_stream(name, vectors, num_requests=num_requests, seed=seed)
    guard = load_guard()
    half = len(stream) // 2
    rows = [_row("oracle", None, oracle(stream)[half:])]
    for guarded, label in ((None, "static"), (guard, "static, guard")):
        runs = {bar: run(stream, StaticPolicy(bar), guard=guarded, seed=seed) for bar in _STATIC_BARS}
        first, second = ({bar: part(served) for bar, served in runs.items()} for part in (_until(half), _from(half)))
        rows += [_row(label, budget, second[_best_bar(first, budget)]) for budget in BUDGETS]
        rows += [_row(f"{label}, in hindsight", budget, second[_best_bar(second, budget)]) for budget in BUDGETS]
    for budget in BUDGETS:
        draw = random.Random(seed).random
        rows.append(_row("vcache", budget, run(stream, VCachePolicy(budget, draw), guard=None, seed=seed)[half:]))
    for guarded, label in ((None, "calibrated, no guard"), (guard, "calibrated")):
        for budget in BUDGETS:
            policy = CalibratedPolicy(
                load_model(), wrong_to_call_cost=1.0, budget=budget, floor=0.3, safe_bar=_SAFE_BAR
            )
            rows.append(_row(label, budget, run(stream, policy, guard=guarded, seed=seed)[half:]))
    num_repeated = len(stream) - len({request.text for request in stream})
    return {"num_requests": len(stream), "num_counted": len(stream) - half, "num_repeated": num_repeated, "rows": rows}


def make_stream(name: str, vectors: Vectors, *, num_requests: int, seed: int) -> list[Request]:
    """Draw intents by Zipf's law and their questions in turn, each of an intent once before any comes again."""
    draw = random.Random(f"{name} {seed}")
    by_intent: dict[str, list[str]] = {}
    for number, line in enumerate((SHIPPED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        intent = f"{_OUT_OF_SCOPE} {number}" if row["intent"] == _OUT_OF_SCOPE else row["intent"]
        by_intent.setdefault(intent, []).append(row["text"])
    outside = [intent for intent in by_intent if intent.startswith(f"{_OUT_OF_SCOPE} ")]
    # One rank for all that is out of scope, or these thousand would be most of the law's tail.
    ranked = [intent for intent in by_intent if intent not in set(outside)] + ([_OUT_OF_SCOPE] if outside else [])
    draw.shuffle(ranked)
    draw.shuffle(outside)
    asked = {intent: itertools.cycle(draw.sample(texts, len(texts))) for intent, texts in by_intent.items()}
    strange = itertools.cycle(outside)
    law = list(itertools.accumulate(1.0 / rank**_EXPONENT for rank in range(1, len(ranked) + 1)))
    chosen = draw.choices(ranked, cum_weights=law, k=num_requests)
    intents = [next(strange) if intent == _OUT_OF_SCOPE else intent for intent in chosen]
    texts = [next(asked[intent]) for intent in intents]
    known = vectors.of(texts)
    return [Request(text, intent, known[text]) for text, intent in zip(texts, intents, strict=True)]


def run(stream: Sequence[Request], policy: Policy, *, guard: Guard | None, seed: int) -> list[Served]:
    """Answer a stream under a policy, from an empty cache."""
    return list(_Run(Examiner(policy, guard), stream, random.Random(seed)).answers())


def oracle(stream: Sequence[Request]) -> list[Served]:
    """Answer by the nearest entry exactly where it is right."""
    entries = _Entries(len(stream), len(stream[0].vector))
    found = []
    for request in stream:
        nearest = entries.nearest(request.vector, 1)
        is_hit = bool(nearest) and entries.requests[nearest[0][0]].intent == request.intent
        found.append(Served(is_hit, is_wrong=False))
        if not is_hit:
            entries.add(request)
    return found


class _Entries:
    """The cache's entries, and who among them is near."""

    def __init__(self, capacity: int, dim: int) -> None:
        self._vectors: NDArray[np.float32] = np.empty((capacity, dim), np.float32)
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        self._vectors[len(self.requests)] = request.vector
        self.requests.append(request)

    def nearest(self, vector: Vector, count: int) -> list[tuple[int, float]]:
        scores = self._vectors[: len(self.requests)] @ vector
        best = np.argsort(-scores)[:count]
        return [(int(place), float(scores[place])) for place in best]


class _Run:
    """One policy over one stream."""

    def __init__(self, examiner: Examiner, stream: Sequence[Request], draw: random.Random) -> None:
        self._examiner = examiner
        self._stream = stream
        self._draw = draw
        self._entries = _Entries(len(stream), len(stream[0].vector))
        is_vcache = examiner.policy.name == VCachePolicy.name
        self._stores_all = not is_vcache
        self._top_k = 1 if is_vcache else TOP_K  # its rule is about the nearest entry alone

    def answers(self) -> Iterator[Served]:
        for number, request in enumerate(self._stream):
            nearest = self._entries.nearest(request.vector, self._top_k)
            served = self._first_served(request, nearest)
            if served is None:
                was_right = self._learn(request, nearest[0], number, weight=1.0) if nearest else False
                if self._stores_all or not was_right:
                    self._entries.add(request)
                yield Served(is_hit=False, is_wrong=False)
                continue
            if self._draw.random() < SHADOW_SHARE:
                self._learn(request, served, number, weight=1.0 / SHADOW_SHARE)
            yield Served(is_hit=True, is_wrong=self._intent(served) != request.intent)

    def _first_served(self, request: Request, nearest: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
        asked = self._examiner.read(request.text)
        for place, similarity in nearest:
            if similarity < self._examiner.policy.floor:
                return None
            question = self._entries.requests[place].text
            judged = self._examiner.examine(Candidate(str(place), similarity), asked=asked, question=question)
            if objection(judged) is None:
                return place, similarity
        return None

    def _learn(self, request: Request, entry: tuple[int, float], number: int, *, weight: float) -> bool:
        """Tell the policy whether an entry's answer was right; returns it."""
        place, similarity = entry
        is_correct = self._intent(entry) == request.intent
        features = self._features(request.text, self._entries.requests[place].text, similarity)
        if features is not None:
            self._examiner.observe(Label(str(place), features, is_correct, "judge", float(number), weight))
        return is_correct

    def _features(self, asked: str, question: str, similarity: float) -> Features | None:
        """Measure what the policy could have judged; None where the guard would never let it."""
        guard = self._examiner.guard
        if guard is None:
            return Features(similarity)
        pair = guard.compare(guard.read(asked), guard.read(question))
        return None if guard.judge(pair) is not None else features_of(similarity, pair, guard.lexicon)

    def _intent(self, entry: tuple[int, float]) -> str:
        return self._entries.requests[entry[0]].intent


def _until(half: int) -> Callable[[list[Served]], list[Served]]:
    return lambda served: served[:half]


def _from(half: int) -> Callable[[list[Served]], list[Served]]:
    return lambda served: served[half:]


def _best_bar(runs: Mapping[float, Sequence[Served]], budget: float) -> float:
    """Return the bar that served most within the budget, the highest where none kept it."""
    within = [bar for bar, served in runs.items() if sum(one.is_wrong for one in served) <= budget * len(served)]
    return max(within, key=lambda bar: sum(one.is_hit for one in runs[bar])) if within else max(runs)


def _row(policy: str, budget: float | None, served: Sequence[Served]) -> dict[str, Any]:
    hits, wrong = sum(one.is_hit for one in served), sum(one.is_wrong for one in served)
    return {
        "policy": policy,
        "budget": budget,
        "hits": _share(Share(hits, len(served))),
        "wrong_per_request": _share(Share(wrong, len(served))),
        "wrong_per_hit": _share(Share(wrong, hits)),
    }


def _share(share: Share) -> dict[str, Any]:
    return {"share": share.value, "count": share.count, "total": share.total, "interval": list(share.interval)}
