"""How every backend stands, as all workers of this node see it together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SUMMED = ("in_flight", "attempts", "failures")
_LATEST = {"last_error": "last_error_at", "health": "health_checked_at"}
Model = Mapping[str, Any]


def merge_backends(views: Sequence[Sequence[Model]]) -> list[dict[str, Any]]:
    """Merge the workers' views: counts are added, the longest cool-down and the latest word hold.

    Models stand in the first view's order. The time to first content is the workers' mean, weighted by attempts.
    """
    models: dict[str, list[Model]] = {}
    for view in views:
        for model in view:
            models.setdefault(model["model"], []).append(model)
    return [{**seen[0], "backends": _merged_targets(seen)} for seen in models.values()]


def _merged_targets(models: Iterable[Model]) -> list[dict[str, Any]]:
    """Merge position by position: one deployment may stand twice in a route."""
    targets: dict[tuple[str, int], list[Model]] = {}
    for model in models:
        counts: dict[str, int] = {}
        for target in model["backends"]:
            number = counts[target["id"]] = counts.get(target["id"], -1) + 1
            targets.setdefault((target["id"], number), []).append(target)
    return [_merged(seen) for seen in targets.values()]


def _merged(seen: Sequence[Model]) -> dict[str, Any]:
    merged = dict(seen[0])
    for name in _SUMMED:
        merged[name] = sum(one[name] for one in seen)
    merged["failures_in_a_row"] = max(one["failures_in_a_row"] for one in seen)
    cooling = max(seen, key=lambda one: one["cooled_until"] or 0.0)
    merged["cooled_until"], merged["cooled_for"] = cooling["cooled_until"], cooling["cooled_for"]
    for name, at in _LATEST.items():
        latest = max(seen, key=lambda one: one[at] or 0.0)
        merged[name], merged[at] = latest[name], latest[at]
    timed = [one for one in seen if one["first_content_ewma_ms"] is not None]
    weight = sum(max(one["attempts"], 1) for one in timed)
    total = sum(one["first_content_ewma_ms"] * max(one["attempts"], 1) for one in timed)
    merged["first_content_ewma_ms"] = total / weight if timed else None
    return merged
