"""Serve what is worth its risk: P(correct) from pooled evidence and the entry's record, against a price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
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
_FARTHEST = 1e6  # stands for infinity, which JSON has no word for
_NO_RECORD = EntryRecord()


@dataclass(frozen=True, slots=True)
class Seen:
    """A label as the window keeps it: the candidate's evidence in logits, before the deployment's scale."""

    evidence: float
    is_correct: bool
    weight: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What the labels taught: a value that `dump` and `restore` carry over a restart.

    `window` holds the latest 1,000 labels; `records` those of at most 20,000 entries, the longest unlabelled left
    out first; `bar` is the conformal one over the window, in logits of evidence, None while labels are too few.
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
        record = learned.records.get(entry, _NO_RECORD)
        inputs = (*features.values(), *record.offset(variance=self.model.entry_variance), *astuple(learned.scale))
        required = self.p_required
        if learned.bar is not None:
            required = max(required, sigmoid(learned.scale.of(learned.bar)))
        elif features.similarity < self.safe_bar:
            required = 1.0
        return Judgement(chance_of(self.model, inputs), required, inputs)

    def observe(self, label: Label) -> Self:
        """Return the policy that knows one label more; the scale and the bar are fitted anew with every 20th."""
        learned = self.learned
        values = label.features.values()
        records = dict(learned.records)
        record = records.pop(label.entry, _NO_RECORD)
        evidence = evidence_of(self.model, values, *record.offset(variance=self.model.entry_variance))
        records[label.entry] = record.with_label(self.model.logit(values)[0], is_correct=label.is_correct)
        while len(records) > MAX_ENTRIES:
            del records[next(iter(records))]
        window = (*learned.window, Seen(evidence, label.is_correct, label.weight))[-WINDOW:]
        grown = replace(learned, records=records, window=window, num_labels=learned.num_labels + 1)
        is_due = grown.num_labels % _REFIT_EVERY == 0 or len(window) == num_labels_needed(self._budget)
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
            "window": [list(astuple(seen)) for seen in learned.window],
        }

    def restore(self, kept: Mapping[str, Any]) -> Self:
        """Return the policy with what `dump` wrote; what another version learned is left out."""
        if kept.get("version") != self.version:
            return replace(self, learned=Learned())
        learned = Learned(
            records={
                entry: EntryRecord(tuple((logit, bool(right)) for logit, right in rows))
                for entry, rows in kept["records"].items()
            },
            window=tuple(Seen(evidence, bool(right), weight) for evidence, right, weight in kept["window"]),
            scale=Scale(*kept["scale"]),
            bar=kept["bar"],
            num_labels=kept["num_labels"],
        )
        return replace(self, learned=learned)

    @property
    def _budget(self) -> float:
        return self.budget if self.budget is not None else min(0.5, 1.0 / self.wrong_to_call_cost)

    def _refitted(self, learned: Learned) -> Learned:
        scale = fit_scale((seen.evidence, seen.is_correct, seen.weight) for seen in learned.window)
        if len(learned.window) < num_labels_needed(self._budget):
            return replace(learned, scale=scale, bar=None)
        outcomes = (Outcome(seen.evidence, seen.is_correct, seen.weight) for seen in learned.window)
        bar = conformal_bar(outcomes, budget=self._budget)
        return replace(learned, scale=scale, bar=max(-_FARTHEST, min(_FARTHEST, bar)))


def chance_of(model: PooledModel, inputs: Sequence[float]) -> float:
    """Compute P(correct) from a judgement's inputs: the features, then offset, its variance, shift and stretch."""
    *values, offset, spread, shift, stretch = inputs
    return sigmoid(Scale(shift, stretch).of(evidence_of(model, values, offset, spread)))


def evidence_of(model: PooledModel, values: Sequence[float], offset: float, spread: float) -> float:
    """Return the evidence for a candidate as a logit: the pooled curve at its lower bound, and the entry's offset.

    Over what entries differ in, the chance is averaged, which draws the logit towards 0 (MacKay's approximation,
    1992: E[sigmoid(x)] = sigmoid(x / sqrt(1 + pi variance / 8))).
    """
    mean, variance = model.logit(values)
    return (mean - _Z * math.sqrt(variance) + offset) / math.sqrt(1.0 + math.pi * spread / 8.0)
