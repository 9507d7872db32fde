"""Run the measurements and write them down: one dictionary for --json, one table for eyes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cache.guard import GUARD_VERSION, Guard, load_guard
from lab.bench.cache.conversations import measure_conversations, table_of
from lab.bench.cache.embedding import Vectors, find_encoder
from lab.bench.cache.eviction import measure_eviction, show_eviction
from lab.bench.cache.pairs import BUDGETS, SHIPPED, Asked, Pair, Point, Share, asked_of, at_bar, at_budget, by_category
from lab.bench.cache.pairs import read_pairs as read
from lab.bench.cache.rules import OURS, Contestant, contestants, shown_bar
from lab.bench.cache.streams import STREAMS, measure_stream

_CATEGORY_BUDGET = 0.05
_TIMED_ROUNDS = 5
_SHOWN_FROM = 8

Report = dict[str, Any]


def measure_pairs(path: Path | None, *, part: str, encoder: Path | None, kept_in: Path) -> Report:
    """Measure every rule on labelled pairs; without a path on the shipped pairs of `part`."""
    pairs = read(path) if path is not None else read(SHIPPED / "pairs.jsonl", part=part)
    vectors = Vectors(encoder or find_encoder(), kept_in=kept_in)
    asked = asked_of(pairs, vectors.of(text for pair in pairs for text in (pair.a, pair.b)))
    guard = load_guard()
    policies = {name: _measured(name, one, pairs, asked) for name, one in contestants(guard).items()}
    best = max(OURS, key=lambda name: sum(policies[name]["served_at_trap_budget"].values()))
    num_same = sum(pair.same_answer for pair in pairs)
    return {
        "pairs": str(path) if path is not None else f"shipped, {part}",
        "num_same": num_same,
        "num_traps": len(pairs) - num_same,
        "embedder": vectors.revision,
        "guard_version": GUARD_VERSION,
        "best_policy": best,
        "served_at_trap_budget": policies[best]["served_at_trap_budget"],
        "default": {name: policies["static"]["default"][name]["share"] for name in ("served", "wrong")},
        "policies": policies,
        "guard": _guard_figures(guard, pairs),
        "load_average": os.getloadavg()[0],
    }


def measure_streams(encoder: Path | None, *, kept_in: Path, num_requests: int, seed: int) -> Report:
    """Measure every policy on the shipped streams."""
    vectors = Vectors(encoder or find_encoder(), kept_in=kept_in)
    found = {name: measure_stream(name, vectors, num_requests=num_requests, seed=seed) for name in STREAMS}
    return {"embedder": vectors.revision, "num_requests": num_requests, "seed": seed, "streams": found}


def measure_twins(encoder: Path | None, *, kept_in: Path) -> Report:
    """Measure what conversations are served of their twins' answers."""
    vectors = Vectors(encoder or find_encoder(), kept_in=kept_in)
    rows = measure_conversations(SHIPPED / "conversations.jsonl", vectors, load_guard())
    return {"embedder": vectors.revision, "guard_version": GUARD_VERSION, "conversations": rows}


def measure_evictions(encoder: Path | None, *, kept_in: Path, num_requests: int, seed: int) -> Report:
    """Measure what a full cache keeps, over the shipped streams."""
    vectors = Vectors(encoder or find_encoder(), kept_in=kept_in)
    rows = measure_eviction(vectors, num_requests=num_requests, seed=seed)
    return {"embedder": vectors.revision, "num_requests": num_requests, "seed": seed, "eviction": rows}


def show(report: Report) -> None:
    """Print a report as tables."""
    console = Console(width=120)
    if "eviction" in report:
        show_eviction(report["eviction"])
        return
    if "conversations" in report:
        console.print(table_of(report["conversations"]))
        return
    if "streams" in report:
        for name, figures in report["streams"].items():
            console.print(_stream_table(name, figures))
        return
    console.print(_pair_table(report))
    console.print(_category_table(report))
    guard = report["guard"]
    console.print(
        f"guard: vetoes {guard['traps_vetoed']['share']:.1%} of traps and {guard['same_vetoed']['share']:.1%} of pairs "
        f"with one answer; {guard['median_us']:.0f} us a pair (median), {guard['p95_us']:.0f} us (p95), load average "
        f"{report['load_average']:.1f}"
    )


def _measured(name: str, contestant: Contestant, pairs: Sequence[Pair], asked: Sequence[Asked]) -> Report:
    scores = [contestant.rule(one) for one in asked]
    points = {str(budget): at_budget(pairs, scores, budget) for budget in BUDGETS}
    bar = at_budget(pairs, scores, _CATEGORY_BUDGET).bar
    return {
        "about": contestant.about,
        "served_at_trap_budget": {budget: point.served.value for budget, point in points.items()},
        "points": {budget: _point(name, point) for budget, point in points.items()},
        "default": _point(name, at_bar(pairs, scores, contestant.default_bar)),
        "by_category": {kind: _share(share) for kind, share in by_category(pairs, scores, bar).items()},
        "by_category_at_default": {
            kind: _share(share) for kind, share in by_category(pairs, scores, contestant.default_bar).items()
        },
    }


def _point(name: str, point: Point) -> Report:
    return {"bar": shown_bar(name, point.bar), "served": _share(point.served), "wrong": _share(point.wrong)}


def _share(share: Share) -> Report:
    return {"share": share.value, "count": share.count, "total": share.total, "interval": list(share.interval)}


def _guard_figures(guard: Guard, pairs: Sequence[Pair]) -> Report:
    """Count the vetoes by reason, and time both readings and the comparison, the fastest of five rounds a pair."""
    reasons: dict[str, dict[str, int]] = {}
    for pair in pairs:
        veto = guard(pair.a, pair.b)
        if veto is not None:
            counts = reasons.setdefault(veto.reason, {"same": 0, "traps": 0})
            counts["same" if pair.same_answer else "traps"] += 1
    times = sorted(min(_timed_us(guard, pair) for _ in range(_TIMED_ROUNDS)) for pair in pairs)
    num_same = sum(pair.same_answer for pair in pairs)
    return {
        "reasons": reasons,
        "same_vetoed": _share(Share(sum(counts["same"] for counts in reasons.values()), num_same)),
        "traps_vetoed": _share(Share(sum(counts["traps"] for counts in reasons.values()), len(pairs) - num_same)),
        "median_us": statistics.median(times),
        "p95_us": times[int(0.95 * (len(times) - 1))],
    }


def _timed_us(guard: Guard, pair: Pair) -> float:
    begun = time.perf_counter()
    guard(pair.a, pair.b)
    return (time.perf_counter() - begun) * 1e6


def _pair_table(report: Report) -> Table:
    table = Table(
        title=f"Served of {report['num_same']} pairs with one answer, {report['num_traps']} traps ({report['pairs']})"
    )
    table.add_column("rule")
    for budget in BUDGETS:
        table.add_column(f"at {budget:.0%} traps", justify="right")
    table.add_column("shipped bar: wrong", justify="right")
    for name, figures in report["policies"].items():
        cells = [_with_interval(figures["points"][str(budget)]["served"]) for budget in BUDGETS]
        default = figures["default"]
        table.add_row(name, *cells, f"{default['served']['share']:.1%} / {default['wrong']['share']:.1%}")
    return table


def _category_table(report: Report) -> Table:
    best = report["best_policy"]
    names = list(dict.fromkeys(("cosine", "redisvl", "static", best)))
    table = Table(title="Served of each category, at the bar that lets 5 % of all traps pass")
    table.add_column("category")
    for name in names:
        table.add_column(name, justify="right")
    small: dict[str, list[int]] = {}
    for kind in report["policies"][best]["by_category"]:
        shares = [report["policies"][name]["by_category"][kind] for name in names]
        if shares[0]["total"] >= _SHOWN_FROM:
            table.add_row(kind, *(f"{share['count']} of {share['total']}" for share in shares))
            continue
        which = f"other {kind.partition(':')[0]}"
        for name, share in zip(names, shares, strict=True):
            counted = small.setdefault(f"{which} {name}", [0, 0])
            counted[0], counted[1] = counted[0] + share["count"], counted[1] + share["total"]
    for which in ("other same", "other trap"):
        cells = [small.get(f"{which} {name}", [0, 0]) for name in names]
        table.add_row(which, *(f"{count} of {total}" for count, total in cells))
    return table


def _stream_table(name: str, figures: Report) -> Table:
    table = Table(title=f"{name}: second half of {figures['num_requests']} requests, {figures['num_counted']} counted")
    for heading in ("policy", "budget", "hits", "wrong per request", "wrong per hit"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in figures["rows"]:
        budget = "" if row["budget"] is None else f"{row['budget']:.0%}"
        table.add_row(
            row["policy"],
            budget,
            f"{row['hits']['share']:.1%}",
            _with_interval(row["wrong_per_request"]),
            f"{row['wrong_per_hit']['share']:.1%}",
        )
    return table


def _with_interval(share: Report) -> str:
    low, high = share["interval"]
    return f"{share['share']:.1%} ({100 * low:.0f}-{100 * high:.0f})"
