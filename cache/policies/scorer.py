"""P(correct) from the features: one logistic curve for all entries, fitted on labelled pairs, with its uncertainty."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cache.policies.features import FEATURES_VERSION, feature_names

DEFAULT_MODEL = Path(__file__).with_name("pooled.json")


class UnknownModel(ValueError):
    """The file holds no model for these features; the message says which it wants."""


@dataclass(frozen=True, slots=True)
class PooledModel:
    """logit P = w . (1, (x - means) / scales), w ~ N(weights, covariance).

    `weights` (F + 1) begin with the constant; `covariance` is (F + 1) x (F + 1); `entry_variance` is how much the
    logits of entries differ among each other. `version` names the fit.
    """

    version: str
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    entry_variance: float

    def logit(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the logit's mean and variance for one candidate's features."""
        row = (1.0, *((x - mean) / scale for x, mean, scale in zip(values, self.means, self.scales, strict=True)))
        mean = sum(w * x for w, x in zip(self.weights, row, strict=True))
        variance = 0.0
        for x, line in zip(row, self.covariance, strict=True):
            if x:
                variance += x * sum(c * other for c, other in zip(line, row, strict=True))
        return mean, max(0.0, variance)


def load_model(path: Path = DEFAULT_MODEL) -> PooledModel:
    """Read a fitted model; raises `UnknownModel` where it was fitted on other features."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept["features"] != list(feature_names()) or kept["features_version"] != FEATURES_VERSION:
        raise UnknownModel(f"{path}: fitted on {kept['features']} version {kept['features_version']}")
    return PooledModel(
        version=kept["version"],
        means=tuple(kept["means"]),
        scales=tuple(kept["scales"]),
        weights=tuple(kept["weights"]),
        covariance=tuple(tuple(line) for line in kept["covariance"]),
        entry_variance=kept["entry_variance"],
    )


def sigmoid(x: float) -> float:
    """Return 1 / (1 + e^-x) without overflow; 0 and 1 for the infinities."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    grown = math.exp(x)
    return grown / (1.0 + grown)
