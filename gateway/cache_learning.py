"""What the semantic cache learns while serving: bars that were applied, and labels; with the admin side of both."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from cache.examiner import Examiner
from cache.store import Store
from gateway.feedback import Feedback, feedback_routes
from gateway.label_watch import LabelWatch
from gateway.parts import CallReader
from gateway.policy_admin import policy_routes
from gateway.policy_watch import PolicyWatch
from logging_layer.labels import LabelBook
from logging_layer.policies import PolicyHistory


class CacheLearning:
    """Follow one database for everything that changes the examiners of one worker."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._labels = LabelBook(database_url)
        self._policies = PolicyHistory(database_url)
        self._watches: list[PolicyWatch | LabelWatch] = []

    def follow(self, examiner: Examiner) -> None:
        """Keep an examiner up to date from `start` on."""
        self._watches.append(PolicyWatch(PolicyHistory(self._database_url), examiner))
        self._watches.append(LabelWatch(LabelBook(self._database_url), examiner))

    def routes(self, *, calls: CallReader, store: Store) -> Sequence[APIRouter]:
        """Return the admin side: feedback on a call, and the policy in force."""
        feedback = Feedback(calls=calls, labels=self._labels, store=store)
        return (feedback_routes(feedback), policy_routes(self._policies))

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
