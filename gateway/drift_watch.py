"""A bar that no longer keeps its promise is raised at once; only a person or `lamina tune` lowers it again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from cache.examiner import Examiner
from cache.policies.drift import ENOUGH, WINDOW, Terms, grown, promised_rate, tightened, wealth
from gateway.hit_outcomes import HitOutcomes
from gateway.label_watch import INTERVAL_S, LabelCursor
from logging_layer.labels import LabelBook, LabelsDown
from logging_layer.listing import ListingDown
from logging_layer.policies import SETTINGS, AppliedPolicy, PoliciesDown, PolicyHistory

APPLIED_BY = "drift monitor"
REASON = "drift"
_HISTORY_S = 30 * 86_400.0
_SETTLED_S = 1.0
"""How long a policy takes to reach every worker: calls that began before are not held against it."""

logger = logging.getLogger(__name__)

CountHits = Callable[[float], Awaitable[int]]
"""Count the semantic hits since a Unix time, on all workers and nodes; raises `ListingDown`."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What is in force: its number (0: the settings' own, never replaced), its terms, the promise it is held to (the
    one that a person, `lamina tune` or the settings gave), and since when its calls count.
    """

    version: int
    terms: Terms
    promised: float
    since: float


class DriftWatch:
    """Hold the wrong answers among what the policy in force served against its promise, and tighten it where a test
    refuses that it is kept.

    Two streams are tested, each with half of `ALPHA`: hits that were drawn to be asked again, with the last word about
    each (a person's before a judge's before the re-ask's), and what people called wrong, asked or not, against all
    hits that were served. What nobody could tell counts as right in both, so that neither raises a false alarm. Every
    worker of every node looks; of those that come to the same conclusion, one acts.
    """

    def __init__(
        self,
        *,
        book: LabelBook,
        history: PolicyHistory,
        examiner: Examiner,
        settings: Terms,
        count_hits: CountHits,
        told: Callable[[], None] = lambda: None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.outcomes = HitOutcomes()
        self._cursor = LabelCursor(book)
        self._history = history
        self._examiner = examiner
        self._settings = settings
        self._count_hits = count_hits
        self._told = told
        self._interval_s = interval_s
        self._clock = clock
        self._in_force: InForce | None = None
        self._wealth = 1.0
        self._num_excused = 0  # so many complaints were too few among all hits, and hits since only make it less
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._follow(), name="drift-watch")

    async def aclose(self) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def numbers(self) -> Mapping[str, float]:
        """Give what is known as numbers for `/metrics`; a rate without a single outcome is left out."""
        rate = self.outcomes.wrong_rate()
        low, high = rate.interval
        numbers = {
            "sampled_hits_right": rate.num_right,
            "sampled_hits_wrong": rate.num_wrong,
            "sampled_hits_unknown": rate.num_unknown,
            "hits_called_wrong": self.outcomes.num_called_wrong(),
            "wrong_hit_rate_low": low,
            "wrong_hit_rate_high": high,
            "drift_wealth": self._wealth,
        }
        if self._in_force is not None:
            numbers["wrong_hit_rate_promised"] = self._in_force.promised
        return numbers if rate.estimate is None else {**numbers, "wrong_hit_rate": rate.estimate}

    async def look(self) -> AppliedPolicy | None:
        """Take in what is new, and tighten where it is due; returns what this worker put in force."""
        try:
            in_force = await self._find_in_force()
            for label in await self._cursor.new():
                self.outcomes.take(label)
            if in_force.version != (self._examiner.applied or 0):
                return None  # this worker does not follow it yet, so its calls are another policy's
            why = await self._why_broken(in_force)
            return await self._tighten(in_force, why) if why is not None else None
        except (LabelsDown, PoliciesDown, ListingDown) as exc:
            logger.warning("cache.drift_unknown: %s", exc)
            return None

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def _find_in_force(self) -> InForce:
        """Ask anew only where this worker follows another policy than at the last look."""
        known, applied = self._in_force, self._examiner.applied or 0
        if known is None or known.version != applied:
            known = in_force_of(await self._history.recent(), settings=self._settings, now=self._clock())
            self._in_force, self._num_excused = known, 0
        return known

    async def _why_broken(self, in_force: InForce) -> str | None:
        """Say what the tests say against the promise, None where they say nothing."""
        served = list(self.outcomes.since(in_force.since))
        sampled = [outcome.is_correct is False for outcome in served if outcome.is_sampled]
        promised = in_force.promised
        num_before = max(0, len(sampled) - WINDOW)
        self._wealth = wealth(sampled[-WINDOW:], promised=promised, num_before=num_before)
        if self._wealth >= ENOUGH:
            return f"{sum(sampled)} of {len(sampled)} hits that were asked again were wrong"
        num_called = sum(outcome.is_correct is False for outcome in served)
        if num_called <= self._num_excused or grown(num_called, num_called, promised=promised) < ENOUGH:
            return None  # even if nothing else had been served
        num_hits = max(num_called, await self._count_hits(in_force.since))
        if grown(num_called, num_hits, promised=promised) >= ENOUGH:
            return f"{num_called} of {num_hits} hits were called wrong"
        self._num_excused = num_called
        return None

    async def _tighten(self, in_force: InForce, why: str) -> AppliedPolicy | None:
        terms = tightened(in_force.terms)
        if terms is None:
            logger.warning("cache.drift_at_the_end version=%d: %s; nothing tighter is known", in_force.version, why)
            return None
        draft = AppliedPolicy(
            version=0,
            policy=terms.policy,
            threshold=terms.threshold,
            wrong_to_call_cost=terms.wrong_to_call_cost,
            applied_by=APPLIED_BY,
            reason=f"{REASON}: {why}, {in_force.promised:.2%} are promised",
            applied_at=self._clock(),
        )
        applied = await self._history.apply_after(in_force.version, draft)
        if applied is not None:
            logger.warning("cache.drift_tightened version=%d: %s", applied.version, applied.reason)
            self._told()
        return applied


def in_force_of(versions: Sequence[AppliedPolicy], *, settings: Terms, now: float) -> InForce:
    """Tell what is in force from the newest versions, newest first."""
    promise = next((one for one in versions if one.applied_by != APPLIED_BY), None)
    cost = settings.wrong_to_call_cost
    if promise is not None and promise.policy != SETTINGS:
        cost = promise.wrong_to_call_cost
    if not versions:
        return InForce(0, settings, promised_rate(cost), now - _HISTORY_S)
    newest = versions[0]
    terms = Terms(newest.policy, newest.threshold, newest.wrong_to_call_cost)
    since = newest.applied_at + _SETTLED_S
    return InForce(newest.version, settings if newest.policy == SETTINGS else terms, promised_rate(cost), since)
