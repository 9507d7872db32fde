"""New labels reach the policy: every worker and node on one database learns from them within some seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from cache.examiner import Examiner
from cache.policies.features import Features, feature_names
from cache.policies.policy import Label as PolicyLabel
from logging_layer.labels import Label, LabelBook, LabelsDown, LabelSource

INTERVAL_S = 5.0
_HISTORY_S = 30 * 86_400.0
_OVERLAP_S = 2.0  # nodes' clocks differ, and a label is visible a moment after its time
_MAX_DRAWN = 10_000

logger = logging.getLogger(__name__)


class LabelCursor:
    """Read the labels of the last 30 days, then what is new or was said otherwise since, each once."""

    def __init__(self, book: LabelBook) -> None:
        self._book = book
        self.rewind()

    def rewind(self) -> None:
        """Begin anew."""
        self._from_s = time.time() - _HISTORY_S
        self._seen: dict[tuple[str, str], float] = {}

    async def new(self) -> list[Label]:
        """Return what was not returned before, oldest first; raises `LabelsDown`."""
        labels = await self._book.since(self._from_s)
        new = [label for label in labels if self._seen.get((label.call, label.source)) != label.labelled_at]
        if labels:
            self._from_s = max(self._from_s, labels[-1].labelled_at - _OVERLAP_S)
        self._seen = {(one.call, one.source): one.labelled_at for one in labels if one.labelled_at >= self._from_s}
        return new


@dataclass(frozen=True, slots=True)
class Drawing:
    """Which calls are labelled at all: a share of the hits, a share of the near misses; a label stands for as many.

    Re-asks say only what is surely right: learned from alone they would raise every chance. `has_judge` tells whether
    somebody says of the others what they are.
    """

    hits: float = 1.0
    near_misses: float = 1.0
    has_judge: Callable[[], bool] = lambda: False


class LabelWatch:
    """Hand the labels of the last 30 days, then each new one, to the examiner's policy; each once, and all of them
    again to a policy that was put in force meanwhile, which knows none.

    A database that does not answer is asked again; the policy stays as it is meanwhile.
    """

    def __init__(
        self,
        book: LabelBook,
        examiner: Examiner,
        *,
        drawing: Drawing = Drawing(),
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._cursor = LabelCursor(book)
        self._examiner = examiner
        self._drawing = drawing
        self._drawn: OrderedDict[str, None] = OrderedDict()
        self._interval_s = interval_s
        self._taught = examiner.applied
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._follow(), name="label-watch")

    async def look(self) -> int:
        """Learn from what is new; returns how many labels taught something."""
        if self._examiner.applied != self._taught:
            self._taught = self._examiner.applied
            self._cursor.rewind()
        try:
            new = await self._cursor.new()
        except LabelsDown as exc:
            logger.warning("cache.labels_unknown: %s", exc)
            return 0
        num_learned = 0
        for label in new:
            if self._examiner.applied != self._taught:
                break  # the policy that came meanwhile is taught all of them at the next look
            lesson = self._lesson(label)
            if lesson is not None:
                self._examiner.observe(lesson)
                num_learned += 1
                await asyncio.sleep(0)  # lessons take a millisecond each, and there may be 100,000: calls go between
        return num_learned

    async def aclose(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _lesson(self, label: Label) -> PolicyLabel | None:
        """Weigh a label by how many calls it stands for: a drawn hit's by those that were not drawn."""
        if label.source is LabelSource.SHADOW:
            self._drawn[label.call] = None
            if len(self._drawn) > _MAX_DRAWN:
                self._drawn.popitem(last=False)
            if not self._drawing.has_judge():
                return None
        share = self._drawing.hits if label.call in self._drawn else 1.0
        if label.source is LabelSource.NEAR_MISS:
            share = self._drawing.near_misses
        lesson = lesson_of(label)
        return None if lesson is None else replace(lesson, weight=1.0 / share)

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)


def lesson_of(label: Label) -> PolicyLabel | None:
    """Return what a policy learns from a label, None where nobody could tell or no scorer had judged."""
    if label.is_correct is None or label.inputs is None or label.entry is None:
        return None
    values = json.loads(label.inputs)[: len(feature_names())]
    if len(values) != len(feature_names()):
        return None  # of a version with other features
    return PolicyLabel(label.entry, Features(*values), label.is_correct, label.source.value, label.labelled_at)
