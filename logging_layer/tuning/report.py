"""A sweep in full: its points for each policy and everything that is drawn beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from logging_layer.tuning.prices import Prices
from logging_layer.tuning.scored import Scored
from logging_layer.tuning.shapes import Bin, Calibration, PricePoint, histogram, price_curve, reliability
from logging_layer.tuning.sweep import Point, recommend, sweep

MAX_WRONG_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Report:
    """What the rows of one dataset say; the first policy is the one that is tuned.

    `recommended` is None where no bar is sure to be worth its mistakes.
    """

    dataset: str
    prices: Prices
    num_rows: int
    num_labelled: int
    policies: Mapping[str, Sequence[Point]]
    recommended: Point | None
    histogram: Sequence[Bin]
    reliability: Sequence[Calibration]
    price_curve: Sequence[PricePoint]
    wrong: Sequence[Scored]
    num_wrong: int

    @property
    def points(self) -> Sequence[Point]:
        """The points of the policy that is tuned."""
        return next(iter(self.policies.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the points and the recommendation as they are written with `--json`."""
        return {
            "dataset": self.dataset,
            "requests": self.num_rows,
            "labelled": self.num_labelled,
            "cost_call_usd": self.prices.call_usd,
            "cost_wrong_usd": self.prices.wrong_usd,
            "recommended": self.recommended.threshold if self.recommended else None,
            "thresholds": [_rounded(asdict(point)) for point in self.points],
        }


def report_on(rows: Sequence[Scored], *, dataset: str, thresholds: Sequence[float], prices: Prices) -> Report:
    """Sweep the rows of each policy, the first one's first. `rows` is not empty, `thresholds` is sorted."""
    by_policy: dict[str, list[Scored]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    tuned = next(iter(by_policy.values()))
    policies = {name: sweep(own, thresholds=thresholds, prices=prices) for name, own in by_policy.items()}
    wrong = sorted((row for row in tuned if row.is_correct is False), key=lambda row: -row.similarity)
    return Report(
        dataset=dataset,
        prices=prices,
        num_rows=len(tuned),
        num_labelled=sum(row.is_correct is not None for row in tuned),
        policies=policies,
        recommended=recommend(next(iter(policies.values()))),
        histogram=histogram(tuned),
        reliability=reliability(tuned),
        price_curve=price_curve(tuned, thresholds=thresholds, call_usd=prices.call_usd),
        wrong=wrong[:MAX_WRONG_SHOWN],
        num_wrong=len(wrong),
    )


def _rounded(value: Any) -> Any:
    """Round what floating point left behind the ninth digit, so that sums come out to the cent."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 9) if isinstance(value, float) else value
