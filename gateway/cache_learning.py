"""What the semantic cache learns while serving: bars that were applied, and labels; with the admin side of both."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from cache.examiner import Examiner
from cache.judge.desk import DeskLimits, JudgeDesk
from cache.judge.opinion import Judge
from cache.partition import Question, last_text
from cache.policies.drift import Terms
from cache.shadow import Reask, Shadow
from cache.store import Leases, Store
from gateway.cache_metrics import CacheMetrics
from gateway.drift_watch import DriftWatch
from gateway.feedback import Feedback, feedback_routes
from gateway.judging import JudgeStanding, Judging, VerdictBook, judge_routes, keep_label
from gateway.label_watch import Drawing, LabelWatch
from gateway.parts import CallReader
from gateway.policy_admin import policy_routes
from gateway.policy_watch import PolicyWatch
from logging_layer.judge_checks import JudgeChecks
from logging_layer.labels import Label, LabelBook, LabelSource
from logging_layer.listing import CallListing
from logging_layer.policies import PolicyHistory
from orchestration.core import CacheStatus


class CacheLearning:
    """Follow one database for everything that changes the examiners of one worker."""

    def __init__(self, database_url: str, *, metrics: CacheMetrics, listing: CallListing) -> None:
        self._labels = LabelBook(database_url)
        self._policies = PolicyHistory(database_url)
        self._metrics = metrics
        self._listing = listing
        self._database_url = database_url
        self._drift: DriftWatch | None = None
        self._judging: Judging | None = None
        self._watches: list[PolicyWatch | LabelWatch | DriftWatch | Judging] = []

    def follow(self, examiner: Examiner, *, settings: Terms, shadow_share: float, near_miss_share: float) -> None:
        """Keep an examiner up to date from `start` on, and hold it to its promise; `settings` are the settings' own
        terms, the shares say what is labelled.
        """
        drawing = Drawing(hits=shadow_share or 1.0, near_misses=near_miss_share or 1.0, has_judge=self._has_judge)
        self._drift = DriftWatch(
            book=self._labels,
            history=self._policies,
            examiner=examiner,
            settings=settings,
            count_hits=self._count_hits,
            told=self._metrics.tightened,
        )
        self._watches += [
            PolicyWatch(self._policies, examiner),
            LabelWatch(self._labels, examiner, drawing=drawing),
            self._drift,
        ]

    def judge(
        self, judge: Judge, *, model: str, limits: DeskLimits, store: Store, leases: Leases, examiner: Examiner
    ) -> JudgeDesk:
        """Have near misses, and hits whose re-ask differs, put to a judge from `start` on, once it has a say."""
        standing = JudgeStanding(JudgeChecks(self._database_url), fingerprint=judge.fingerprint, model=model)
        desk = JudgeDesk(
            judge.compare,
            store=store,
            leases=leases,
            examiner=examiner,
            tell=VerdictBook(self._labels, metrics=self._metrics).keep,
            count=self._metrics.judged,
            is_in_force=lambda: standing.is_in_force,
            draw=random.random,
            limits=limits,
        )
        self._judging = Judging(standing, desk)
        self._watches.append(self._judging)
        return desk

    def feedback(self, *, calls: CallReader, store: Store) -> Feedback:
        """Return what takes words about calls."""
        return Feedback(calls=calls, labels=self._labels, store=store, told=self._metrics.quarantined)

    async def numbers(self) -> Mapping[str, float]:
        """Give what is known of served hits, for `/metrics`."""
        known = dict(self._drift.numbers()) if self._drift is not None else {}
        if self._judging is not None:
            known["judge_in_force"] = float(self._judging.standing.is_in_force)
        return known

    def routes(self, feedback: Feedback) -> Sequence[APIRouter]:
        """Return the admin side: feedback on a call, the policy in force, and the judge's standing."""
        return (feedback_routes(feedback), policy_routes(self._policies), judge_routes(self._judge_view))

    def shadow(self, share: float) -> Shadow | None:
        """Return what asks a share of the hits again and keeps the outcome as labels; None for a share of 0."""
        return Shadow(share=share, draw=random.random, tell=self._keep) if share > 0.0 else None

    async def _count_hits(self, since: float) -> int:
        sums = await self._listing.sums("cache_status", since=since)
        return next((int(row["calls"]) for row in sums if row["cache_status"] == CacheStatus.SEMANTIC), 0)

    async def _keep(self, reask: Reask) -> None:
        self._metrics.shadowed("same" if reask.is_same else "other_words", cost_usd=reask.cost_usd)
        label = Label(
            call=reask.call.id,
            source=LabelSource.SHADOW,
            is_correct=reask.is_same,
            labelled_at=time.time(),
            entry=reask.entry.id,
            similarity=reask.similarity,
            inputs=_inputs_of(reask),
            note=None if reask.cost_usd is None else f"asked again for {reask.cost_usd:.6f} USD",
        )
        await keep_label(self._labels, label)
        self._have_judged(reask)

    def _have_judged(self, reask: Reask) -> None:
        """Let the judge say what the re-ask could not: whether an answer in other words is another answer."""
        partition, text = reask.call.notes.cache.partition, last_text(reask.call.request.messages)
        if self._judging is None or reask.is_same or partition is None or text is None or reask.similarity is None:
            return
        question = Question(partition, text)
        self._judging.desk.consider_hit(reask.call.id, question, reask.entry.id, reask.similarity)

    def _has_judge(self) -> bool:
        return self._judging is not None and self._judging.standing.is_in_force

    def _judge_view(self) -> Mapping[str, Any]:
        if self._judging is None:
            return {"model": None, "in_force": False, "reason": "cache.semantic.judge is not set", "check": None}
        return self._judging.standing.view()

    async def start(self) -> None:
        """Take what is in force now, and follow it."""
        for watch in self._watches:
            await watch.start()

    async def aclose(self) -> None:
        """Follow no longer."""
        for watch in self._watches:
            await watch.aclose()
        await self._labels.aclose()
        await self._policies.aclose()


def _inputs_of(reask: Reask) -> str | None:
    """Return what the scorer saw of the entry that was served, None where none had looked."""
    served = (one for one in reask.call.notes.cache.candidates if one.entry == reask.entry.id)
    inputs = next((one.inputs for one in served), None)
    return None if inputs is None else json.dumps(inputs)
