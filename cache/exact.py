"""The exact cache: the same request again gets the same answer, and one that is on its way is bought once."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from cache.bounded_store import BoundedLeases, BoundedStore, Breaker
from cache.card import Invalidated, make_card
from cache.election import Election
from cache.entry import Entry, UnreadableEntry, dump, load, make_entry
from cache.flight import Flight, Flights
from cache.key import KEY_VERSION, exact_key
from cache.recording import Recording
from cache.replay import cut, replay
from cache.storable import CACHEABLE_KINDS, why_not_stored
from cache.store import Leases, Ledger, NoLedger, Store, StoreDown, StoreFull, StoreSlow
from orchestration.core import CacheNote, CacheStatus, Call, Delta, Event, Finish, Handler
from orchestration.core.errors import CacheMissed

# Packing and unpacking beyond this takes milliseconds, which the event loop has not got.
_THREAD_FROM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ExactBounds:
    """How long and how much at most: what happens beyond is said at `ExactCache`."""

    lookup_timeout_s: float = 0.05
    store_timeout_s: float = 0.02
    lease_wait_s: float = 5.0
    max_recording_bytes: int = 4 * 1024 * 1024
    patience_s: float = 10.0


class ExactCache:
    """A layer that answers from what it kept under the exact key, and keeps what is worth it.

    - `route_of(alias)` hashes what an alias stands for (any text for one that does not exist); `policy_of(call)`
      hashes the checks in force. Both are part of the key.
    - A look-up may take `lookup_timeout_s`, a write `store_timeout_s`: beyond them, and while the store is down,
      the call goes on without, and its notes say so.
    - Equal calls under way share one flight (see `Flight`); an answer over `max_recording_bytes` is not kept, and
      nobody new may join it; a reader that holds others up is waited for `patience_s` in all, then cut off.
    - With `leases`, equal calls of other workers wait for it up to `lease_wait_s`.
    - `is_last_tier=False` says that another cache stands further in, which then answers `only-if-cached` itself.
    - The `ledger` numbers invalidations, so that none is outrun by an answer on its way, and counts hits.
    """

    def __init__(  # noqa: PLR0913 (each is a setting of its own or a part that wiring brings)
        self,
        store: Store,
        *,
        ttl_s: float,
        route_of: Callable[[str], str],
        policy_of: Callable[[Call], str],
        leases: Leases | None = None,
        is_last_tier: bool = True,
        ledger: Ledger | None = None,
        bounds: ExactBounds = ExactBounds(),
        now: Callable[[], float] = time.time,
    ) -> None:
        breaker = Breaker()
        self._store = BoundedStore(
            store, get_timeout_s=bounds.lookup_timeout_s, put_timeout_s=bounds.store_timeout_s, breaker=breaker
        )
        self._ttl_s = ttl_s
        self._route_of = route_of
        self._policy_of = policy_of
        self._is_last_tier = is_last_tier
        self._bounds = bounds
        self._ledger = ledger or NoLedger()
        self._now = now
        self._flights = Flights()
        self._election: Election | None = None
        if leases is not None:
            bounded = BoundedLeases(leases, timeout_s=bounds.lookup_timeout_s, breaker=breaker)
            self._election = Election(bounded, wait_s=bounds.lease_wait_s)

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer from the cache or from a flight, the call's own or one that it joins."""
        begun = time.monotonic()
        source = await self._choose_source(call, next)
        call.notes.stages_ms["exact_cache"] = (time.monotonic() - begun) * 1000.0
        async with aclosing(source) as events:
            async for event in events:
                yield event

    def close_flights(self) -> None:
        """Let nobody new join an answer that is under way: something was invalidated since it began."""
        self._flights.close_to_newcomers()

    async def aclose(self) -> None:
        """Cancel every flight; their readers get an error that says why."""
        await self._flights.aclose()
        if self._election is not None:
            await self._election.aclose()

    async def _choose_source(self, call: Call, next: Handler) -> AsyncGenerator[Event, None]:
        """Decide where the answer comes from; between this and its first event nothing else runs."""
        control, note = call.controls.cache, call.notes.cache
        if control.is_no_store or call.kind not in CACHEABLE_KINDS:
            note.status, note.reason = CacheStatus.BYPASS, "no_store" if control.is_no_store else "kind"
            return self._ask(call, next)
        key = exact_key(call, route=self._route_of(call.request.model), policy=self._policy_of(call))
        note.key, note.key_version = key, KEY_VERSION
        if control.is_no_cache:
            note.status, note.reason = CacheStatus.BYPASS, "no_cache"
        else:
            source = await self._find_answer(key, call)
            if source is not None:
                return source
        if control.is_only_if_cached:
            return self._ask(call, next)
        return self._launch(key, call, next).lead()

    async def _find_answer(self, key: str, call: Call) -> AsyncGenerator[Event, None] | None:
        """Look for a flight to join, then for an entry, then for a flight that began meanwhile."""
        call.notes.cache.status = CacheStatus.MISS
        flight = self._find_flight(key, call)
        if flight is None:
            entry = await self._look_up_until_quiet(key, call)
            if entry is not None:
                self._note_hit(key, call, entry)
                return replay(entry, call)
            flight = self._find_flight(key, call)
        return None if flight is None else self._join(flight, call)

    def _ask(self, call: Call, next: Handler) -> AsyncGenerator[Event, None]:
        if call.controls.cache.is_only_if_cached and self._is_last_tier:
            raise CacheMissed("no cached answer to this request, and `only-if-cached` asks for no other")
        return next(call)

    def _find_flight(self, key: str, call: Call) -> Flight | None:
        """Find a flight whose answer this call may have: one that began under the very same controls.

        A flight may be answered by the semantic tier within its leader's bar and age; another caller's may be
        stricter. What is under way is not cached yet, so `only-if-cached` joins nothing.
        """
        control = call.controls.cache
        flight = None if control.is_only_if_cached else self._flights.find((key, call.controls))
        if flight is not None and control.max_age_s is not None:
            return flight if self._now() - flight.started_at <= control.max_age_s else None
        return flight

    async def _look_up_until_quiet(self, key: str, call: Call) -> Entry | None:
        """Look the entry up, and once more where a flight stored it while the first look-up was on its way."""
        with self._flights.watch(key) as watch:
            entry = await self._look_up(key, call)
            if entry is None and watch.has_landed:
                entry = await self._look_up(key, call)
        return entry

    async def _look_up(self, key: str, call: Call) -> Entry | None:
        """Return a usable entry, or note why there is none."""
        note = call.notes.cache
        try:
            packed = await self._store.get(key)
            entry = None if packed is None else await _unpack(key, packed)
        except UnreadableEntry:
            note.reason = "unreadable"
            return None
        except StoreDown as exc:
            note.reason = _note_degraded(call, exc)
            return None
        note.reason = "absent" if entry is None else self._why_unusable(entry, call)
        return entry if note.reason is None else None

    def _why_unusable(self, entry: Entry, call: Call) -> str | None:
        age_s, max_age_s = entry.age_s(self._now()), call.controls.cache.max_age_s
        if age_s > entry.ttl_s:
            return "expired"
        return "too_old" if max_age_s is not None and age_s > max_age_s else None

    def _launch(self, key: str, call: Call, next: Handler) -> Flight:
        """Start the call's own flight; one that came with `no-cache` refreshes the entry and is joined by nobody."""
        recording = Recording(max_bytes=self._bounds.max_recording_bytes, patience_s=self._bounds.patience_s)
        begun = self._now()
        flight = Flight(call, id=secrets.token_hex(16), started_at=begun, recording=recording, epoch=self._ledger.epoch)
        is_private = call.controls.cache.is_no_cache
        if self._election is None or is_private:
            events = next(call)
        else:
            look_up, found = partial(self._look_up, key, call), partial(self._replay_others, key, call)
            events = self._election.run(key, look_up=look_up, found=found, ask=partial(next, call))
        flight_key = None if is_private else (key, call.controls)
        self._flights.launch(flight, events, before_finish=partial(self._store_answer, key), key=flight_key)
        return flight

    async def _join(self, flight: Flight, call: Call) -> AsyncGenerator[Event, None]:
        """Follow another call's flight; its wire frames were meant for another client and are left out."""
        is_noted = False
        async with aclosing(flight.follow()) as events:
            async for event in events:
                if not is_noted:
                    is_noted = True
                    _note_joined(call, flight, ttl_s=self._ttl_s)
                match event:
                    case Delta() if call.request.is_streamed:
                        for piece in cut(event.with_raw(None, None)):
                            yield piece
                    case Delta():
                        yield event.with_raw(None, None)
                    case Finish():
                        _note_cost(call, flight)
                        yield event.with_raw(None, None)
                    case _:
                        yield event

    async def _store_answer(self, key: str, flight: Flight, finish: Finish) -> None:
        """Keep the answer, or note why not."""
        note = flight.call.notes.cache
        note.store_reason = await self._why_not_kept(key, flight, finish)
        note.was_stored = note.store_reason is None
        if note.was_stored:
            self._flights.tell_landed(key)

    async def _why_not_kept(self, key: str, flight: Flight, finish: Finish) -> str | None:
        """Try to keep the answer; return why it could not be or may not be, None where it is kept."""
        if not flight.recording.is_whole:
            return "too_large"
        call, events = flight.call, (*flight.recording.events, finish)
        reason = why_not_stored(call, events)
        if reason is not None:
            return reason
        entry = make_entry(call, events, id=flight.id, created_at=flight.started_at, ttl_s=self._ttl_s)
        try:
            packed = await _pack(key, entry, is_large=flight.recording.held_bytes > _THREAD_FROM_BYTES)
            card = make_card(call, entry, events, kind="exact", epoch=flight.epoch)
            await self._store.put(key, packed, ttl_s=self._ttl_s, card=card)
        except ValueError:
            return "unpackable"
        except Invalidated:
            return "invalidated"
        except StoreFull:
            return "store_full"
        except StoreDown as exc:
            return _note_degraded(call, exc)
        return None

    def _replay_others(self, key: str, call: Call, entry: Entry) -> AsyncGenerator[Event, None]:
        """Tell an entry that another worker has stored while this call waited for it."""
        self._note_hit(key, call, entry)
        call.notes.cache.is_collapsed = True
        return replay(entry, call)

    def _note_hit(self, key: str, call: Call, entry: Entry) -> None:
        self._ledger.hit(key)
        notes, note = call.notes, call.notes.cache
        note.status, note.reason = CacheStatus.EXACT, None
        note.entry, note.entry_call = entry.id, entry.call_id
        note.entry_created_at, note.ttl_s = entry.created_at, entry.ttl_s
        notes.model, notes.backend = entry.model, entry.backend
        notes.cost_usd = 0.0


async def _pack(key: str, entry: Entry, *, is_large: bool) -> bytes:
    """Pack an entry with its key in front: should a server or a library ever mix up two answers, it shows."""
    return bytes.fromhex(key) + (await asyncio.to_thread(dump, entry) if is_large else dump(entry))


async def _unpack(key: str, packed: bytes) -> Entry:
    prefix = bytes.fromhex(key)
    if not packed.startswith(prefix):
        raise UnreadableEntry("the store gave another key's value")
    body = packed[len(prefix) :]
    return await asyncio.to_thread(load, body) if len(body) > _THREAD_FROM_BYTES else load(body)


def _note_joined(call: Call, flight: Flight, *, ttl_s: float) -> None:
    """Note where the shared answer comes from: where its leader's does, or the entry that is in the making."""
    notes, theirs = call.notes, flight.call.notes
    key = notes.cache.key
    if theirs.cache.status in (CacheStatus.EXACT, CacheStatus.SEMANTIC):
        notes.cache = replace(theirs.cache, was_stored=False, store_reason=None)
    else:
        notes.cache = CacheNote(
            status=CacheStatus.EXACT,
            entry=flight.id,
            entry_call=flight.call.id,
            entry_created_at=flight.started_at,
            ttl_s=ttl_s,
        )
    notes.cache.is_collapsed = True
    notes.cache.key, notes.cache.key_version = key, KEY_VERSION
    notes.model, notes.backend, notes.is_fallback = theirs.model, theirs.backend, theirs.is_fallback


def _note_cost(call: Call, flight: Flight) -> None:
    """Charge a joined call nothing, or what the answer cost where the one who began it has left."""
    call.notes.cost_usd = flight.call.notes.cost_usd if flight.is_orphan else 0.0
    flight.is_orphan = False


def _note_degraded(call: Call, error: StoreDown) -> str:
    word = "slow" if isinstance(error, StoreSlow) else "down"
    call.notes.degrade(f"exact_cache_{word}")
    return f"store_{word}"
