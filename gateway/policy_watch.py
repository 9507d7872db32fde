"""Which policy of the semantic cache is in force: the settings' one, or the newest that was applied while serving."""

from __future__ import annotations

import asyncio
import logging

from cache.examiner import Examiner
from cache.policies.build import build_policy
from cache.policies.policy import Policy
from logging_layer.policies import SETTINGS, AppliedPolicy, PoliciesDown, PolicyHistory

INTERVAL_S = 0.5
logger = logging.getLogger(__name__)


class PolicyWatch:
    """Ask the database twice a second what is in force, and hand it to the examiner: every worker and every node on
    one database has it within a second.

    A database that does not answer leaves in force what is. Nothing is asked before `start`.
    """

    def __init__(self, history: PolicyHistory, examiner: Examiner, *, interval_s: float = INTERVAL_S) -> None:
        self._history = history
        self._examiner = examiner
        self._settings_policy: Policy = examiner.policy
        self._interval_s = interval_s
        self._is_down = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take what is in force, and follow it from then on."""
        await self.look()
        self._task = asyncio.create_task(self._follow(), name="policy-watch")

    async def look(self) -> None:
        """Take what is in force now."""
        try:
            newest = await self._history.newest()
        except PoliciesDown as exc:
            if not self._is_down:
                logger.warning("cache.policy_unknown: %s", exc)
            self._is_down = True
            return
        self._is_down = False
        if newest is not None and newest.version != self._examiner.applied:
            self._take(newest)

    async def aclose(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    def _take(self, applied: AppliedPolicy) -> None:
        try:
            policy = self._settings_policy if applied.policy == SETTINGS else _policy_of(applied)
        except ValueError as exc:
            # Another version of ours may know more policies; this one keeps what it has, and says so once a version.
            logger.warning("cache.policy_refused version=%d: %s", applied.version, exc)
            policy = self._examiner.policy
        self._examiner.policy, self._examiner.applied = policy, applied.version
        logger.info("cache.policy_applied version=%d policy=%s", applied.version, applied.policy)


def _policy_of(applied: AppliedPolicy) -> Policy:
    return build_policy(applied.policy, threshold=applied.threshold, wrong_to_call_cost=applied.wrong_to_call_cost)
