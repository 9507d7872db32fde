"""Where pairs wait for the judge: bounded, each once, so many a minute, off every caller's way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cache.aliases import Alias, Aliases
from cache.entry import Entry, UnreadableEntry, load
from cache.examiner import Examiner
from cache.guard.veto import SOFT_REASONS
from cache.judge.opinion import Opinion
from cache.partition import Question
from cache.quarantine import alias_key, quarantine, semantic_key
from cache.store import Leases, Store, StoreDown
from orchestration.core import Call, Candidate

_MAX_SEEN = 10_000
_SEEN_S = 86_400.0
_NEAR = frozenset({"below_bar", "vetoed", "unlikely"})

logger = logging.getLogger(__name__)


class Compare(Protocol):
    """Give an opinion on two questions; raises nothing."""

    async def __call__(self, one: str, other: str, /) -> Opinion:
        """Return the opinion."""
        ...


class Outcome(StrEnum):
    """What became of a pair. UNDRAWN, FULL and DUPLICATE were not taken; GONE and VETOED not put to the judge; DOWN,
    SLOW and GARBAGE got no opinion.
    """

    UNDRAWN = "undrawn"
    FULL = "full"
    DUPLICATE = "duplicate"
    GONE = "gone"
    VETOED = "vetoed"
    DOWN = "down"
    SLOW = "slow"
    GARBAGE = "garbage"
    APPROVED = "approved"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Pair:
    """A question that was asked, and the entry that did (`is_hit`) or might have answered it."""

    call: str
    question: Question
    entry: str
    similarity: float
    is_hit: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge said of a pair. `values` are what a scorer looks at, None where the guard had objected: a policy
    never sees such a pair, so it learns nothing from it.
    """

    pair: Pair
    is_correct: bool
    values: tuple[float, ...] | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class DeskLimits:
    """`per_minute` opinions are asked for at most, of a `share` of near misses; `max_waiting` pairs wait at most, and
    one more is dropped. Neighbours below the cosine `min_similarity` are no near misses.
    """

    per_minute: float = 30.0
    share: float = 1.0
    max_waiting: int = 256
    min_similarity: float = 0.8


class JudgeDesk:
    """Put near misses, and hits whose re-ask came in other words, to a judge; the caller waits for nothing.

    Approved near misses become aliases, hits that were wrong are quarantined, and `tell` hears every verdict. Nothing
    is ever served on a word that was not said: a judge that is down, slow or unclear is counted, and the pair may come
    again. `is_in_force` is asked before a pair is taken and before an alias is served. `count` hears every outcome.
    """

    def __init__(  # noqa: PLR0913 (each is a part or a bound of its own)
        self,
        compare: Compare,
        *,
        store: Store,
        leases: Leases,
        examiner: Examiner,
        tell: Callable[[Verdict], Awaitable[None]],
        count: Callable[[str], None],
        is_in_force: Callable[[], bool],
        draw: Callable[[], float],
        limits: DeskLimits = DeskLimits(),
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._compare = compare
        self._store = store
        self._leases = leases
        self._examiner = examiner
        self._aliases = Aliases(store, clock=clock)
        self._tell = tell
        self._count = count
        self._is_in_force = is_in_force
        self._draw = draw
        self._limits = limits
        self._sleep = sleep
        self._waiting: asyncio.Queue[Pair] = asyncio.Queue(limits.max_waiting)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Count the pairs that wait."""
        return self._waiting.qsize()

    async def alias_of(self, question: Question) -> Alias | None:
        """Return the question's alias while the judge has a say; raises `StoreDown`."""
        return await self._aliases.find(question) if self._is_in_force() else None

    def consider(self, call: Call, question: Question) -> None:
        """Take a call's nearest neighbour in, where the call was answered by none and it came near."""
        if call.notes.extra.get("semantic") not in _NEAR or not self._is_in_force():
            return
        unusable = call.notes.extra.get("semantic_unusable") or {}
        candidate = next((one for one in call.notes.cache.candidates if self._is_near(one, unusable)), None)
        if candidate is None:
            return
        if self._draw() >= self._limits.share:
            self._count(Outcome.UNDRAWN)
            return
        self._take(Pair(call.id, question, candidate.entry, candidate.similarity, is_hit=False))

    def consider_hit(self, call: str, question: Question, entry: str, similarity: float) -> None:
        """Take a served hit in, whose re-ask was answered in other words."""
        if self._is_in_force():
            self._take(Pair(call, question, entry, similarity, is_hit=True))

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._work(), name="judge")
        self._task.add_done_callback(_say_why)

    async def aclose(self) -> None:
        """Stop asking; what waits is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_near(self, candidate: Candidate, unusable: dict[str, str]) -> bool:
        is_open = candidate.veto is None or candidate.veto in SOFT_REASONS
        return is_open and candidate.entry not in unusable and candidate.similarity >= self._limits.min_similarity

    def _take(self, pair: Pair) -> None:
        key = _key(pair)
        if key in self._seen:
            self._count(Outcome.DUPLICATE)
        elif self._waiting.full():
            self._count(Outcome.FULL)
        else:
            self._seen[key] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            self._waiting.put_nowait(pair)

    async def _work(self) -> None:
        while True:
            pair = await self._waiting.get()
            try:
                outcome = await self._look_at(pair)
            except StoreDown as exc:
                logger.warning("cache.judge_without_store: %s", exc)
                outcome = Outcome.DOWN
            self._count(outcome)
            if outcome not in (Outcome.GONE, Outcome.VETOED, Outcome.DUPLICATE):
                await self._sleep(60.0 / self._limits.per_minute)

    async def _look_at(self, pair: Pair) -> Outcome:
        """Ask the judge about one pair and act on its word; raises `StoreDown`."""
        entry = await self._entry(pair)
        if entry is None or entry.question is None:
            return Outcome.GONE
        asked = self._examiner.read(pair.question.text)
        veto, features = self._examiner.compare(pair.similarity, asked=asked, question=entry.question)
        if veto is not None and veto not in SOFT_REASONS:
            return Outcome.VETOED
        lease = f"judge:{_key(pair)}"
        token = await self._leases.acquire(lease, ttl_s=_SEEN_S)
        if token is None:
            return Outcome.DUPLICATE  # another worker or node has it
        opinion = await self._compare(pair.question.text, entry.question)
        if opinion.is_same is None:
            self._seen.pop(_key(pair), None)  # it may come again
            await self._leases.release(lease, token)
            return Outcome(opinion.failure or Outcome.GARBAGE)
        if pair.is_hit and not opinion.is_same:
            await quarantine(self._store, (semantic_key(pair.entry), alias_key(pair.question)))
        elif opinion.is_same and not pair.is_hit:
            await self._aliases.keep(pair.question, entry, similarity=pair.similarity)
        values = features.values() if veto is None else None
        await self._tell(Verdict(pair, opinion.is_same, values, opinion.cost_usd))
        return Outcome.APPROVED if opinion.is_same else Outcome.REJECTED

    async def _entry(self, pair: Pair) -> Entry | None:
        packed = await self._store.get(semantic_key(pair.entry))
        try:
            return None if packed is None else load(packed)
        except UnreadableEntry:
            return None


def _say_why(task: asyncio.Task[None]) -> None:
    """Log a fault of ours that ended the desk's work: nothing else would show it before the end."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("cache.judge_ended", exc_info=task.exception())


def _key(pair: Pair) -> str:
    return f"{pair.question.entry}:{pair.entry}:{pair.is_hit:d}"
