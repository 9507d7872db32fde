"""A report as one page that needs nothing else: sliders for the price and the bar, and the wrong hits themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from logging_layer.tuning.report import Report
from logging_layer.tuning.sweep import PER, Point

_FOLDER = Path(__file__).parent


def page_of(report: Report, *, trace_url: Callable[[str], str] | None = None) -> str:
    """Write the page. `trace_url` turns a call's id into a link; texts of callers are shown as text, never run."""
    data = json.dumps(_data(report, trace_url), ensure_ascii=True, allow_nan=False)
    page = (_FOLDER / "page.html").read_text(encoding="utf-8")
    for place, text in (
        ("/*STYLE*/", (_FOLDER / "page.css").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", (_FOLDER / "page.js").read_text(encoding="utf-8")),
        # What ends a script element must not stand in the data: a caller's text may hold it.
        ("/*DATA*/", data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")),
    ):
        page = page.replace(place, text)
    return page


def _data(report: Report, trace_url: Callable[[str], str] | None) -> dict[str, Any]:
    return {
        "about": (
            f"{report.dataset}: {report.num_rows:,} requests, {report.num_labelled:,} of them labelled. "
            "Wrong is what a person, a shadow call or a file says; intervals are Wilson's, 95 %."
        ),
        "call_usd": report.prices.call_usd,
        "wrong_usd": report.prices.wrong_usd,
        "points": [_point(point) for point in report.points],
        "policies": [
            {"name": name, "points": [_point(point) for point in points]} for name, points in report.policies.items()
        ],
        "histogram": [asdict(bin_) for bin_ in report.histogram],
        "price_curve": [asdict(point) for point in report.price_curve],
        "reliability": [
            {"claimed": row.claimed, "num_rows": row.num_rows, **asdict(row.came_true)} for row in report.reliability
        ],
        "wrong": [
            {
                "similarity": row.similarity,
                "question": row.question,
                "neighbour": row.neighbour,
                "call": row.call,
                "trace": trace_url(row.call) if trace_url is not None and row.call is not None else None,
            }
            for row in report.wrong
        ],
        "wrong_left_out": report.num_wrong - len(report.wrong),
    }


def _point(point: Point) -> dict[str, float]:
    return {
        "threshold": point.threshold,
        "hits": point.hits,
        "wrong": point.wrong,
        "wrong_low": PER * point.wrong_per_request.low,
        "wrong_high": PER * point.wrong_per_request.high,
        "wrong_per_hit": point.wrong_per_hit.value,
        "wrong_per_trap": point.wrong_per_trap.value,
    }
