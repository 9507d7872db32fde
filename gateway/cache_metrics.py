"""What the caches do, as metrics: hits by kind, misses and vetoes by reason, and what was saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter

from gateway.tallies import Tallies
from orchestration.core import CacheStatus, Price, Usage
from orchestration.core.notes import CacheNote, Notes

PriceOf = Callable[[Sequence[str | None], str | None], Price]
"""Give the price of an answer by the names its model may go by and its backend's, as the settings have it now."""

_MISSED = frozenset(
    {
        *("no_candidates", "below_bar", "unusable", "vetoed", "unlikely"),
        *("slow", "down", "busy", "too_long", "unreadable", "bad_params"),
    }
)
_OTHER = "other"


class CacheMetrics:
    """Count what the caches decided, of the calls that end and of what is learned beside them.

    What calls decided is told to the registry by the `tallies`, the rest at once. Every label's values are from a
    closed list: what this version does not know is counted as `other`.
    """

    def __init__(self, registry: CollectorRegistry, tallies: Tallies | None = None) -> None:
        tallies = tallies or Tallies()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"lamina_cache_{name}", meaning, labels, registry=registry)

        hits = counter(
            "hits", "Answers from a cache: exact, semantic, alias, or coalesced with a call under way.", "kind"
        )
        misses = counter(
            "misses", "Look-ups without an answer, by what the semantic tier said, if it took part.", "reason"
        )
        vetoes = counter("vetoes", "Neighbours that the difference guard refused, by its reason.", "reason")
        tokens = counter("saved_tokens", "Tokens of answers that no backend had to make again.", "type")
        shadow = counter(
            "shadow", "Hits asked again, by whether the answer had the same words or other_words.", "outcome"
        )
        judge = counter("judge", "What became of the pairs that the off-path judge was to look at.", "outcome")
        house_usd = counter("house_usd", "What asking hits again and the judge cost, charged to no caller.", "by")
        self._saved_usd = counter("saved_usd", "What the answers from caches would have cost, at today's prices.")
        self._quarantined = counter("quarantined", "Stored answers taken out of service because one was called wrong.")
        self._tightened = counter("drift_tightened", "How often the drift monitor of a worker raised the bar.")
        self._hits = tallies.counter(hits)
        self._misses = tallies.counter(misses)
        self._vetoes = tallies.counter(vetoes)
        self._tokens = tallies.counter(tokens)
        self._shadow, self._judge, self._house_usd = shadow.labels, judge.labels, house_usd.labels
        self.price_of: PriceOf = lambda _models, _backend: Price()

    def observe(self, notes: Notes, usage: Usage | None, *, model: str) -> None:
        """Count one call that has ended; `model` is the name it was asked for under."""
        cache = notes.cache
        for candidate in cache.candidates:
            if candidate.veto is not None:
                self._vetoes(candidate.veto).waiting += 1
        match cache.status:
            case CacheStatus.EXACT | CacheStatus.SEMANTIC:
                self._hits(kind_of(cache)).waiting += 1
                if usage is not None:
                    self._save(notes, usage, model=model)
            case CacheStatus.MISS:
                self._misses(_why_missed(notes)).waiting += 1
            case CacheStatus.BYPASS:
                pass

    def quarantined(self, number: int) -> None:
        """Count stored answers that were taken out of service."""
        self._quarantined.inc(number)

    def shadowed(self, outcome: str, *, cost_usd: float | None) -> None:
        """Count a hit that was asked again, and what that cost the house."""
        self._shadow(outcome).inc()
        self._house_usd("shadow").inc(cost_usd or 0.0)

    def judged(self, outcome: str) -> None:
        """Count a pair that the judge was to look at."""
        self._judge(outcome).inc()

    def judge_cost(self, usd: float) -> None:
        """Count what an opinion cost the house."""
        self._house_usd("judge").inc(usd)

    def tightened(self) -> None:
        """Count a bar that was raised because answers went wrong too often."""
        self._tightened.inc()

    def _save(self, notes: Notes, usage: Usage, *, model: str) -> None:
        self._tokens("prompt").waiting += usage.prompt_tokens
        self._tokens("completion").waiting += usage.completion_tokens
        if not notes.cost_usd:  # one who joined a flight whose leader left has paid for it
            cost_usd = self.price_of((model, notes.model), notes.backend).cost_usd(usage)
            if cost_usd:
                self._saved_usd.inc(cost_usd)


def kind_of(cache: CacheNote) -> str:
    """Name the kind of a hit: `coalesced`, `alias`, or the tier's."""
    if cache.is_collapsed:
        return "coalesced"
    return "alias" if cache.is_alias else cache.status.value


def _why_missed(notes: Notes) -> str:
    said = notes.extra.get("semantic")
    if said is None:
        return "absent"
    if notes.cache.threshold is None:
        return "ineligible"
    return said if said in _MISSED else _OTHER
