"""What is known of answers that the semantic cache served: labels of several sources folded to one verdict a call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from cache.policies.interval import exact_interval
from gateway.ids import ulid_time
from logging_layer.labels import Label, LabelSource

MAX_HITS = 10_000
_SPOKEN = (LabelSource.HUMAN, LabelSource.JUDGE, LabelSource.SHADOW)


@dataclass(slots=True)
class HitOutcome:
    """One served hit; `served_at` is Unix time in seconds, by the call's id where that tells it."""

    served_at: float
    said: dict[LabelSource, bool | None] = field(default_factory=dict)

    @property
    def is_sampled(self) -> bool:
        """Tell whether it was drawn to be asked again, and so stands for others."""
        return LabelSource.SHADOW in self.said

    @property
    def is_correct(self) -> bool | None:
        """Return the word of who goes first among those who could tell, None where nobody could."""
        return next((self.said[one] for one in _SPOKEN if self.said.get(one) is not None), None)


@dataclass(frozen=True, slots=True)
class WrongRate:
    """Of the hits that were drawn to be asked again: how many are known to be right or wrong, or neither.

    `low` and `high` hold the share of wrong hits with 95 % (Clopper and Pearson), whatever became of those of which
    nobody could tell: the one takes them all as right, the other as wrong.
    """

    num_right: int
    num_wrong: int
    num_unknown: int

    @property
    def total(self) -> int:
        """Count all of them."""
        return self.num_right + self.num_wrong + self.num_unknown

    @property
    def estimate(self) -> float | None:
        """Return the share that is known to be wrong, None before the first one was asked again."""
        return self.num_wrong / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """Return `low` and `high`."""
        most = self.num_wrong + self.num_unknown
        return exact_interval(self.num_wrong, self.total)[0], exact_interval(most, self.total)[1]


class HitOutcomes:
    """Keep the outcomes of the latest 10,000 labelled hits, in the order in which they were first heard of."""

    def __init__(self) -> None:
        self._by_call: OrderedDict[str, HitOutcome] = OrderedDict()

    def take(self, label: Label) -> None:
        """Take a label in; what is no word about a semantic hit is passed over.

        A label is about a semantic hit where a hit was asked again, or where it knows the two questions' cosine.
        """
        is_hit = label.source is LabelSource.SHADOW or label.similarity is not None
        if label.source not in _SPOKEN or not is_hit:
            return
        known = self._by_call.get(label.call)
        if known is None:
            known = self._by_call[label.call] = HitOutcome(ulid_time(label.call) or label.labelled_at)
            if len(self._by_call) > MAX_HITS:
                self._by_call.popitem(last=False)
        known.said[label.source] = label.is_correct

    def since(self, served_at: float) -> Iterator[HitOutcome]:
        """Give the hits that were served from a time on."""
        return (outcome for outcome in self._by_call.values() if outcome.served_at >= served_at)

    def wrong_rate(self) -> WrongRate:
        """Sum up the drawn hits; what people call wrong unasked says nothing about the others, and is left out."""
        verdicts = [outcome.is_correct for outcome in self._by_call.values() if outcome.is_sampled]
        return WrongRate(verdicts.count(True), verdicts.count(False), verdicts.count(None))

    def num_called_wrong(self) -> int:
        """Count the hits that were called wrong, drawn or not."""
        return sum(outcome.is_correct is False for outcome in self._by_call.values())
