"""Where a call went, decided again: the order of backends, and the model by the request's complexity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.replay.finding import Finding, Verdict, compared
from orchestration.core.balance import Strategy, choose, situation_of
from orchestration.core.complexity import Features, ModelChoice
from orchestration.core.tries import ROUTING

_INPUTS = ("strategy", "options", "turn", "draws", "affinity")


def routing_findings(record: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what became of each routing decision of a call."""
    routing = record["extra"].get(ROUTING) or {}
    for order in routing.get("orders", ()):
        yield _order(order)
    if "complexity" in routing:
        yield _complexity(routing["complexity"])


def _order(order: Mapping[str, Any]) -> Finding:
    if order["strategy"] == Strategy.PREFIX and order["affinity"] is None:
        return Finding("routing", Verdict.REDACTED, order["ready"], note="the prefix's hash is not in the log")
    again = choose(situation_of({name: order[name] for name in _INPUTS}))
    recorded = {"ready": list(order["ready"]), "cooled": list(order["cooled"])}
    return compared("routing", recorded=recorded, recomputed={"ready": list(again.ready), "cooled": list(again.cooled)})


def _complexity(decision: Mapping[str, Any]) -> Finding:
    choice = ModelChoice("small", "medium", "large", decision["medium_from"], decision["large_from"])
    size, score = choice.decide(Features(**decision["features"]))
    recorded = {"size": decision["size"], "score": decision["score"]}
    return compared("complexity", recorded=recorded, recomputed={"size": size.value, "score": round(score, 4)})
