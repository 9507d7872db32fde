"""The semantic tier: a question that is near enough to an earlier one, all else equal, gets its answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from cache.aliases import Alias
from cache.card import Card, Invalidated, make_card
from cache.context import MultiTurn
from cache.decide import Decision, bar_for, decide, decide_alias, objection
from cache.entry import Entry, UnreadableEntry, dump, load, make_entry
from cache.examiner import Examiner
from cache.partition import Question, question_of, why_ineligible
from cache.policies.static import StaticPolicy
from cache.quarantine import semantic_key
from cache.replay import replay
from cache.shadow import Shadow
from cache.storable import why_not_stored
from cache.store import Ledger, NoLedger, Store, StoreDown
from orchestration.core import CacheStatus, Call, Candidate, Delta, Event, Finish, Handler
from orchestration.core.errors import CacheMissed

logger = logging.getLogger(__name__)

_MAX_INSERTS = 256
_MAX_ANSWER_CHARS = 1_000_000
_INSERT_TIMEOUT_S = 30.0
_CLOSE_S = 10.0
_TEXT_FAULTS = frozenset({"too_long", "unreadable"})  # the text's own, and no fault of the index


class IndexFault(Exception):
    """The index did not answer; `code` says why in a word: `down`, `slow`, or why it refused the text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Found:
    """The nearest living entries, nearest first, and what found them."""

    candidates: tuple[Candidate, ...]
    embedder: str
    generation: int


class Index(Protocol):
    """Find texts that mean nearly the same. Both methods raise `IndexFault`."""

    async def search(self, partition: str, text: str, *, top_k: int, timeout_s: float) -> Found:
        """Return the at most `top_k` entries nearest to `text` in the partition."""
        ...

    async def add(self, partition: str, text: str, entry: str, *, ttl_s: float) -> None:
        """Have `entry` found by texts near `text` for `ttl_s` seconds; doing it twice is doing it once."""
        ...


class NearMisses(Protocol):
    """Say after the fact which near misses would have been right, and remember them."""

    async def alias_of(self, question: Question) -> Alias | None:
        """Return the entry that was said to answer this very question; raises `StoreDown`."""
        ...

    def consider(self, call: Call, question: Question) -> None:
        """Hear of a look-up that served nothing; waits for nothing."""
        ...


class SemanticCache:
    """Answer from the nearest earlier question of the same partition that guard and policy let pass.

    Without an `examiner` the bar is the cosine `threshold` alone. With one it is the examiner's policy, whose floor
    is the least cosine looked at; a request can raise that, never lower it.

    Looking up takes at most `deadline_ms`, and whatever goes wrong there is a miss that `notes` tells of. What a
    miss brings is inserted after the answer, by tasks of ours of which at most 256 wait; one more is not inserted.
    A `shadow` asks a share of the hits again, a `judge` looks at near misses. `multi_turn` says what of a conversation
    its last question depends on. The `ledger` numbers invalidations, so that no answer on its way outruns one, counts
    hits, and hears of candidates whose answer is gone. `route_of` and `policy_of` give the hashes of a model's route
    and of the checks in force for a call.
    """

    def __init__(  # noqa: PLR0913 (each is a setting of its own or a part that wiring brings)
        self,
        index: Index,
        store: Store,
        *,
        route_of: Callable[[str], str],
        policy_of: Callable[[Call], str],
        threshold: float = 0.95,
        examiner: Examiner | None = None,
        shadow: Shadow | None = None,
        judge: NearMisses | None = None,
        multi_turn: MultiTurn = MultiTurn.STRICT,
        ledger: Ledger | None = None,
        ttl_s: float = 86_400.0,
        top_k: int = 5,
        deadline_ms: float = 50.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not -1.0 <= threshold <= 1.0:
            raise ValueError(f"the threshold is a cosine between -1 and 1, not {threshold}")
        self._index = index
        self._store = store
        self._route_of = route_of
        self._policy_of = policy_of
        self._examiner = examiner or Examiner(StaticPolicy(threshold))
        self._shadow = shadow
        self._judge = judge
        self._multi_turn = multi_turn
        self._ledger = ledger or NoLedger()
        self._ttl_s = ttl_s
        self._top_k = top_k
        self._deadline_s = deadline_ms / 1000.0
        self._clock = clock
        self._inserts: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer from an entry or pass the call on; raises `CacheMissed` for `only-if-cached` without an entry."""
        question = self._question_of(call)
        entry = await self._look_up(call, question) if question is not None else None
        if entry is not None:
            if self._shadow is not None:
                self._shadow.consider(call, entry, next)
            async with aclosing(replay(entry, call)) as events:
                async for event in events:
                    yield event
            return
        if question is not None and self._judge is not None:
            self._judge.consider(call, question)
        if call.controls.cache.is_only_if_cached:
            raise CacheMissed("The answer is not cached, and the request asked for a cached one only.")
        epoch = self._ledger.epoch
        async with aclosing(next(call)) as events:
            if question is None or call.controls.cache.is_no_store:
                async for event in events:
                    yield event
                return
            recording = _Recording()
            async for event in events:
                recording.add(event)
                if isinstance(event, Finish):
                    self._insert_later(call, question, recording, epoch=epoch)
                yield event

    async def aclose(self) -> None:
        """Give up what is asked again, wait for the inserts under way, and give up those that take over 10 s."""
        if self._shadow is not None:
            await self._shadow.aclose()
        if self._inserts:
            _, late = await asyncio.wait(self._inserts, timeout=_CLOSE_S)
            for task in late:
                task.cancel()

    def _question_of(self, call: Call) -> Question | None:
        reason = why_ineligible(call)
        if reason is not None:
            call.notes.extra["semantic"] = reason
            return None
        route, policy = self._route_of(call.request.model), self._policy_of(call)
        return question_of(call, route=route, policy=policy, multi_turn=self._multi_turn)

    async def _look_up(self, call: Call, question: Question) -> Entry | None:
        """Return the entry to serve and note everything that the choice rests on."""
        note = call.notes.cache
        note.partition, note.asked_alone = question.partition, question.asked_alone
        control = call.controls.cache
        if control.is_no_cache or control.is_no_store:
            call.notes.extra["semantic"] = "no_cache" if control.is_no_cache else "no_store"
            return None
        begun = time.monotonic()
        note.status = CacheStatus.MISS
        policy = self._examiner.policy
        note.policy, note.policy_version = policy.name, policy.version
        note.guard_version = self._examiner.guard_version
        note.policy_applied = self._examiner.applied
        note.threshold = bar_for(threshold=policy.floor, floor=call.controls.threshold)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._find(call, question, bar=note.threshold)
        except TimeoutError:
            self._note_degraded(call, "slow")
        except IndexFault as fault:
            if fault.code in _TEXT_FAULTS:
                call.notes.extra["semantic"] = fault.code
            else:
                self._note_degraded(call, fault.code)
        except StoreDown:
            self._note_degraded(call, "down")
        finally:
            call.notes.stages_ms["semantic_lookup"] = (time.monotonic() - begun) * 1000.0
        return None

    async def _find(self, call: Call, question: Question, *, bar: float) -> Entry | None:
        note = call.notes.cache
        found = await self._index.search(
            question.searched, question.text, top_k=self._top_k, timeout_s=self._deadline_s
        )
        note.embedder = found.embedder
        note.index_generation = found.generation
        note.candidates = list(found.candidates)
        unusable: dict[str, str] = {}
        entry = await self._first_served(call, question, bar=bar, unusable=unusable)
        decision = decide(note.candidates, bar=bar, unusable=unusable)
        assert (entry is None) == (decision.entry is None), "what was served follows from what is recorded"
        alias = await self._judge.alias_of(question) if entry is None and self._judge is not None else None
        if alias is not None:
            entry, decision = await self._by_alias(call, question, alias, decision)
        call.notes.extra["semantic"] = decision.reason
        call.notes.extra["semantic_unusable"] = unusable
        if entry is not None:
            self._note_hit(call, entry, decision)
        return entry

    async def _first_served(
        self, call: Call, question: Question, *, bar: float, unusable: dict[str, str]
    ) -> Entry | None:
        """Examine the candidates above the bar, nearest first, up to one that may serve; notes each verdict."""
        candidates = call.notes.cache.candidates
        asked = self._examiner.read(question.text) if candidates and candidates[0].similarity >= bar else None
        for place, candidate in enumerate(candidates):
            if candidate.similarity < bar:
                break
            entry, fault = await self._fetch(call, candidate.entry)
            if entry is None:
                unusable[candidate.entry] = fault
                if fault == "gone":
                    self._ledger.is_gone(question.searched, candidate.entry)
                continue
            candidates[place] = self._examiner.examine(candidate, asked=asked, question=entry.question)
            if objection(candidates[place]) is None:
                return entry
        return None

    async def _by_alias(
        self, call: Call, question: Question, alias: Alias, decision: Decision
    ) -> tuple[Entry | None, Decision]:
        """Return the entry that a judge said answers this very question, with the decision to serve it, if it may."""
        entry, _ = await self._fetch(call, alias.entry)
        if entry is None or not alias.is_of(entry):
            return None, decision
        asked = self._examiner.read(question.text)
        veto, _ = self._examiner.compare(alias.similarity, asked=asked, question=entry.question)
        neighbour = Candidate(alias.entry, alias.similarity, veto=veto)
        decided = decide_alias(decision, neighbour, floor=call.controls.threshold)
        return (entry if decided.entry is not None else None), decided

    async def _fetch(self, call: Call, entry_id: str) -> tuple[Entry | None, str]:
        """Return the entry, or None and why it cannot serve this call."""
        packed = await self._store.get(semantic_key(entry_id))
        if packed is None:
            return None, "gone"
        try:
            entry = load(packed)
        except UnreadableEntry:
            return None, "unreadable"
        age_s = entry.age_s(self._clock())
        if age_s >= entry.ttl_s:
            return None, "expired"
        max_age_s = call.controls.cache.max_age_s
        return (None, "too_old") if max_age_s is not None and age_s > max_age_s else (entry, "")

    def _note_hit(self, call: Call, entry: Entry, decision: Decision) -> None:
        self._ledger.hit(semantic_key(entry.id))
        note = call.notes.cache
        note.status = CacheStatus.SEMANTIC
        note.reason = None
        note.similarity = decision.similarity
        note.is_alias = decision.reason == "alias"
        if not note.is_alias:
            served = next(candidate for candidate in note.candidates if candidate.entry == decision.entry)
            note.p_correct, note.p_required = served.p_correct, served.p_required
        note.entry = entry.id
        note.entry_call = entry.call_id
        note.entry_created_at = entry.created_at
        note.ttl_s = entry.ttl_s
        call.notes.model = entry.model
        call.notes.backend = entry.backend
        call.notes.cost_usd = 0.0

    def _note_degraded(self, call: Call, how: str) -> None:
        call.notes.degrade(f"semantic_cache_{how}")
        call.notes.extra["semantic"] = how

    def _insert_later(self, call: Call, question: Question, recording: _Recording, *, epoch: int) -> None:
        """Begin to insert a complete answer; the caller need not wait, nor stay."""
        looked_up = call.notes.extra.get("semantic")
        hopeless = looked_up if looked_up in _TEXT_FAULTS or looked_up == "down" else None
        reason = hopeless or recording.fault or why_not_stored(call, recording.events)
        if reason is None and len(self._inserts) >= _MAX_INSERTS:
            reason = "too_many_inserts"
        call.notes.extra["semantic_insert"] = reason or "begun"
        if reason is None:
            call.notes.cache.stored_as = question.entry
            entry = make_entry(
                call,
                recording.events,
                id=question.entry,
                created_at=self._clock(),
                ttl_s=self._ttl_s,
                question=question.text,
            )
            card = make_card(
                call,
                entry,
                recording.events,
                kind="semantic",
                epoch=epoch,
                partition=question.partition,
                twin=call.notes.cache.key,
            )
            task = asyncio.create_task(self._insert(question, entry, card), name="semantic-insert")
            self._inserts.add(task)
            task.add_done_callback(self._inserts.discard)

    async def _insert(self, question: Question, entry: Entry, card: Card) -> None:
        """Store the answer, then have it found: an entry in the index always was in the store."""
        try:
            async with asyncio.timeout(_INSERT_TIMEOUT_S):
                await self._store.put(semantic_key(entry.id), dump(entry), ttl_s=entry.ttl_s, card=card)
                await self._index.add(question.partition, question.text, entry.id, ttl_s=entry.ttl_s)
        except Invalidated:
            logger.info("cache.semantic_insert_invalidated call=%s", entry.call_id)
        except (StoreDown, IndexFault, TimeoutError, ValueError) as exc:
            logger.warning("cache.semantic_insert_failed call=%s: %s", entry.call_id, exc)


class _Recording:
    """The events of one answer, given up where it grows beyond a million characters."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fault: str | None = None
        self._num_chars = 0

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._num_chars += len(event.text) + 1
        if self._num_chars > _MAX_ANSWER_CHARS:
            self.fault = "too_large"
            self.events.clear()
        if self.fault is None:
            self.events.append(event)
