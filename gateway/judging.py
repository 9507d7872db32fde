"""The off-path judge of one worker: whose model it is, whether it has a say yet, and what becomes of its verdicts."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from cache.judge.certificate import Certificate, why_inert
from cache.judge.desk import JudgeDesk, Verdict
from cache.judge.opinion import Judge
from gateway.cache_metrics import CacheMetrics
from gateway.ids import new_ulid
from logging_layer.judge_checks import ChecksDown, JudgeCheck, JudgeChecks
from logging_layer.labels import Label, LabelBook, LabelsDown, LabelSource
from orchestration.core import Route, Router
from orchestration.core.standing import Standings

INTERVAL_S = 5.0
_UNKNOWN = "whether it was checked is not known yet"

logger = logging.getLogger(__name__)


class JudgeStanding:
    """Know whether the judge passed on labelled pairs as it is now: its model, its backends, the words of the question.

    It has no say until the database has told so; later it keeps what was told while the database is away.
    """

    def __init__(self, checks: JudgeChecks, *, fingerprint: str, model: str, interval_s: float = INTERVAL_S) -> None:
        self._checks = checks
        self._fingerprint = fingerprint
        self._model = model
        self._interval_s = interval_s
        self._check: JudgeCheck | None = None
        self._task: asyncio.Task[None] | None = None
        self.why_inert: str | None = _UNKNOWN

    @property
    def is_in_force(self) -> bool:
        """Tell whether the judge's word counts."""
        return self.why_inert is None

    async def start(self) -> None:
        """Ask now, and every so often from then on: a check that is made while serving counts soon."""
        await self.look()
        if self.why_inert is not None:
            logger.warning("cache.judge_inert model=%s: %s", self._model, self.why_inert)
        self._task = asyncio.create_task(self._follow(), name="judge-standing")

    async def look(self) -> None:
        """Ask for the judge's last check."""
        try:
            self._check = await self._checks.of(self._fingerprint)
        except ChecksDown as exc:
            logger.warning("cache.judge_check_unknown: %s", exc)
            return
        self.why_inert = why_inert(None if self._check is None else certificate_of(self._check))

    async def aclose(self) -> None:
        """Ask no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._checks.aclose()

    def view(self) -> Mapping[str, Any]:
        """Say what is known, for the admin side."""
        check = None if self._check is None else asdict(self._check)
        return {"model": self._model, "in_force": self.is_in_force, "reason": self.why_inert, "check": check}

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()


class Judging:
    """Run one worker's judge: `standing` says whether it has a say, `desk` asks it."""

    def __init__(self, standing: JudgeStanding, desk: JudgeDesk) -> None:
        self.standing = standing
        self.desk = desk

    async def start(self) -> None:
        """Begin to ask."""
        await self.standing.start()
        self.desk.start()

    async def aclose(self) -> None:
        """Stop asking."""
        await self.desk.aclose()
        await self.standing.aclose()


class VerdictBook:
    """Keep verdicts as labels: of hits as a judge's word, of near misses as such; one that is lost is logged."""

    def __init__(self, labels: LabelBook, *, metrics: CacheMetrics) -> None:
        self._labels = labels
        self._metrics = metrics

    async def keep(self, verdict: Verdict) -> None:
        """Keep one. Where the guard had objected there is no label: no bar and no scorer ever meets such a pair."""
        pair = verdict.pair
        self._metrics.judge_cost(verdict.cost_usd or 0.0)
        if pair.is_hit and not verdict.is_correct:
            self._metrics.quarantined(1)
        if verdict.values is None and not pair.is_hit:
            return
        label = Label(
            call=pair.call,
            source=LabelSource.JUDGE if pair.is_hit else LabelSource.NEAR_MISS,
            is_correct=verdict.is_correct,
            labelled_at=time.time(),
            entry=pair.entry,
            similarity=pair.similarity,
            inputs=None if verdict.values is None else json.dumps(verdict.values),
            note=None if verdict.cost_usd is None else f"judged for {verdict.cost_usd:.6f} USD",
        )
        await keep_label(self._labels, label)


async def keep_label(book: LabelBook, label: Label) -> None:
    """Keep a label that nobody waits for; one that is lost is logged."""
    try:
        await book.add([label])
    except LabelsDown as exc:
        logger.warning("cache.label_lost call=%s: %s", label.call, exc)


def judge_of(route: Route, *, mark: str, standings: Standings, timeout_s: float) -> Judge:
    """Make the judge of a route; `mark` is the route's hash. Models that it would fall back to were not checked."""
    router = Router({route.model: replace(route, fallbacks=())}, standings=standings)
    return Judge(router, model=route.model, route=mark, new_id=new_ulid, timeout_s=timeout_s)


def certificate_of(check: JudgeCheck) -> Certificate:
    """Take from a check what decides."""
    return Certificate(check.num_pairs, check.num_right, check.num_traps, check.num_fooled)


def judge_routes(view: Callable[[], Mapping[str, Any]]) -> APIRouter:
    """Return the route that says whether the judge has a say."""
    router = APIRouter(prefix="/admin/cache", tags=["admin"])

    @router.get("/judge", summary="The off-path judge: its model, its last check, and whether its word counts")
    async def get_judge() -> Response:
        return Response(orjson.dumps(view()), media_type="application/json")

    return router
