"""Serve what is worth its risk: P(correct) from pooled evidence and the entry's record, against a price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cache.policies.conformal import Outcome, conformal_bar, num_labels_needed
from cache.policies.features import Features
from cache.policies.policy import Judgement, Label
from cache.policies.recalibration import Scale, fit_scale
from cache.policies.record import EntryRecord
from cache.policies.scorer import PooledModel, sigmoid

RULE_VERSION = 1
MAX_ENTRIES = 20_000
WINDOW = 1_000
_REFIT_EVERY = 20
_Z = 1.2816  # the lower bound's one-sided level: 90 %


@dataclass(frozen=True, slots=True)
class Seen:
    """A label as the window keeps it."""

    entry: str
    logit: float
    is_correct: bool
    weight: float
    chance: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What the labels taught: a value that `dump` and `restore` carry over a restart.

    `window` holds the latest 1,000 labels; `records` those of at most 20,000 entries, the longest unlabelled left
    out first; `bar` is the conformal one over the window, None while there are too few labels for any.
    """

    records: Mapping[str, EntryRecord] = field(default_factory=dict)
    window: tuple[Seen, ...] = ()
    scale: Scale = field(default_factory=Scale)
    bar: float | None = None
    num_labels: int = 0


@dataclass(frozen=True, slots=True)
class CalibratedPolicy:
    """Serve where the lower bound of P(correct) reaches 1 - 1 / `wrong_to_call_cost`.

    A wrong answer costs that many times what a call costs, so a hit with P below it loses on average. Until the
    window has enough labels for the budget, the cosine must reach `safe_bar` as well; from then on P must reach the
    conformal bar, which may lie above what the price asks for and never counts below it.
    """

    model: PooledModel
    wrong_to_call_cost: float = 25.0
    budget: float | None = None
    floor: float = 0.7
    safe_bar: float = 0.9
    learned: Learned = field(default_factory=Learned)

    name = "calibrated"

    @property
    def version(self) -> str:
        """Name the rule and the pooled model."""
        return f"calibrated-{RULE_VERSION}/{self.model.version}"

    @property
    def p_required(self) -> float:
        """Return the chance from which on a hit pays."""
        return max(0.0, 1.0 - 1.0 / self.wrong_to_call_cost)

    def judge(self, entry: str, features: Features) -> Judgement:
        """Judge one candidate."""
        learned = self.learned
        offset, spread = learned.records.get(entry, EntryRecord()).offset(variance=self.model.entry_variance)
        scale = learned.scale
        inputs = (*features.values(), offset, spread, scale.shift, scale.stretch)
        chance = chance_of(self.model, inputs)
        required = self.p_required if learned.bar is None else max(self.p_required, min(1.0, learned.bar))
        if learned.bar is None and features.similarity < self.safe_bar:
            required = 1.0
        return Judgement(chance, required, inputs)

    def observe(self, label: Label) -> Self:
        """Return the policy that knows one label more; the scale and the bar are fitted anew with every 20th."""
        learned = self.learned
        logit, _ = self.model.logit(label.features.values())
        chance = self.judge(label.entry, label.features).p_correct
        records = dict(learned.records)
        records[label.entry] = records.pop(label.entry, EntryRecord()).with_label(
            learned.scale.of(logit), is_correct=label.is_correct
        )
        while len(records) > MAX_ENTRIES:
            del records[next(iter(records))]
        seen = Seen(label.entry, logit, label.is_correct, label.weight, chance)
        window = (*learned.window, seen)[-WINDOW:]
        grown = replace(learned, records=records, window=window, num_labels=learned.num_labels + 1)
        needed = num_labels_needed(self._budget)
        is_due = grown.num_labels % _REFIT_EVERY == 0 or len(window) == needed
        return replace(self, learned=self._refitted(grown) if is_due else grown)

    def dump(self) -> dict[str, Any]:
        """Write what was learned as plain values for JSON or msgpack."""
        learned = self.learned
        return {
            "version": self.version,
            "num_labels": learned.num_labels,
            "scale": [learned.scale.shift, learned.scale.stretch],
            "bar": learned.bar,
            "records": {entry: list(map(list, record.observations)) for entry, record in learned.records.items()},
            "window": [[s.entry, s.logit, s.is_correct, s.weight, s.chance] for s in learned.window],
        }

    def restore(self, kept: Mapping[str, Any]) -> Self:
        """Return the policy with what `dump` wrote; what another version learned is left out."""
        if kept.get("version") != self.version:
            return replace(self, learned=Learned())
        learned = Learned(
            records={
                entry: EntryRecord(tuple((x, bool(c)) for x, c in rows)) for entry, rows in kept["records"].items()
            },
            window=tuple(
                Seen(entry, logit, bool(c), weight, chance) for entry, logit, c, weight, chance in kept["window"]
            ),
            scale=Scale(*kept["scale"]),
            bar=kept["bar"],
            num_labels=kept["num_labels"],
        )
        return replace(self, learned=learned)

    @property
    def _budget(self) -> float:
        return self.budget if self.budget is not None else min(0.5, 1.0 / self.wrong_to_call_cost)

    def _refitted(self, learned: Learned) -> Learned:
        scale = fit_scale((seen.logit, seen.is_correct, seen.weight) for seen in learned.window)
        if len(learned.window) < num_labels_needed(self._budget):
            return replace(learned, scale=scale, bar=None)
        outcomes = (Outcome(seen.chance, seen.is_correct, seen.weight) for seen in learned.window)
        return replace(learned, scale=scale, bar=conformal_bar(outcomes, budget=self._budget))


def chance_of(model: PooledModel, inputs: Sequence[float]) -> float:
    """Compute P(correct) again from a judgement's inputs: the features, then offset, its variance, shift and stretch.

    The pooled curve counts at its lower bound; over what entries differ in, the chance is averaged (MacKay's probit
    approximation, 1992: E[sigmoid(x)] = sigmoid(x / sqrt(1 + pi variance / 8))).
    """
    *values, offset, spread, shift, stretch = inputs
    mean, variance = model.logit(values)
    lower = shift + stretch * (mean - _Z * math.sqrt(variance)) + offset
    return sigmoid(lower / math.sqrt(1.0 + math.pi * spread / 8.0))
