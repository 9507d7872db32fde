"""All entries of both caches as a whole: listed, counted, found, and taken out by what they have in common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from cache.catalogue_scripts import CUT, FORGET, HITS, MATCHING, SUMS, SWEEP, Script
from cache.entry import Entry, UnreadableEntry, load
from cache.link import SharedLink
from cache.quarantine import semantic_key
from cache.redis_store import CATALOGUE_PREFIX, VALUE_PREFIX
from cache.script import Row, rows_of, run_script
from cache.store import StoreDown
from cache.worth import HALF_LIFE_TURNS, PRICE_POWER

MAX_COUNTED = 100_000
_MAX_CUTS = 10_000
# A script that takes longer than a few milliseconds keeps look-ups waiting.
_SLOTS_AT_ONCE = 20
_CARDS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """What entries have in common; all of what is given must hold. `model` is the alias or the one that answered."""

    tag: str | None = None
    tenant: str | None = None
    model: str | None = None

    def fields(self) -> dict[str, str]:
        """Return what is given."""
        given = {"tag": self.tag, "tenant": self.tenant, "model": self.model}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry as it is listed; `ends_at` and `created_at` are Unix times by the server's clock."""

    key: str
    id: str
    kind: str
    call: str
    tenant: str
    model: str
    real_model: str
    tags: tuple[str, ...]
    size_bytes: int
    hits: int
    saves_usd: float
    created_at: float
    ends_at: float
    partition: str | None
    twin: str | None


@dataclass(slots=True)
class Sum:
    """How much some entries are together."""

    entries: int = 0
    size_bytes: int = 0
    hits: int = 0
    saved_usd: float = 0.0

    def add(self, entries: int, size_bytes: int, hits: int, saved_usd: float) -> None:
        """Count some in."""
        self.entries += entries
        self.size_bytes += size_bytes
        self.hits += hits
        self.saved_usd += saved_usd


@dataclass(slots=True)
class Totals:
    """What is kept, by kind, model and tenant; `is_whole` is False where more than `MAX_COUNTED` entries were there."""

    whole: Sum = field(default_factory=Sum)
    by_kind: dict[str, Sum] = field(default_factory=dict)
    by_model: dict[str, Sum] = field(default_factory=dict)
    by_tenant: dict[str, Sum] = field(default_factory=dict)
    is_whole: bool = True

    def of(self, by: str, name: str) -> Sum:
        """Return one sum: of `all`, or of a name by `kind`, `model` or `tenant`."""
        named = {"kind": self.by_kind, "model": self.by_model, "tenant": self.by_tenant}
        return named[by].setdefault(name, Sum()) if by in named else self.whole


@dataclass(frozen=True, slots=True)
class Taken:
    """What an invalidation took out: how many values there were, and the rows that the index still has."""

    count: int
    rows: tuple[Row, ...]


class Catalogue:
    """Ask the server about the entries that came with a card. Every method raises `StoreDown`.

    It has a connection of its own: what it asks may take longer than a look-up waits. Scripts that touch many
    entries run in pieces, between which others are answered.
    """

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self._link = SharedLink(url, timeout_s=timeout_s)

    async def invalidate(self, wanted: Wanted, *, note: Mapping[str, Any]) -> Taken:
        """Take out every entry that is `wanted`, and keep none that is on its way; `note` says by whom and when.

        From the first of its steps on, no answer that was asked of a backend before can be kept where it is wanted,
        by any worker of any node; and what was kept is gone everywhere when this returns.
        """
        return await self._forget(await self._cut({**wanted.fields(), **note}))

    async def remove(self, id: str, *, note: Mapping[str, Any]) -> Taken | None:
        """Take out one entry with what else keeps the same answer; None where there is none."""
        entry = await self.find(id)
        if entry is None:
            return None
        await self._cut({"call": entry.call, **note})
        twin = await self._card(entry.twin) if entry.twin is not None else None
        slots = [entry.key] + ([twin.key] if twin is not None and twin.call == entry.call else [])
        return await self._forget(slots)

    async def find(self, id: str) -> Listed | None:
        """Return the entry that `x-lamina-entry` names, or None."""
        slot = await self._ask("GET", f"{CATALOGUE_PREFIX}i:{id}")
        return await self._card(semantic_key(id) if slot is None else slot.decode())

    async def answer(self, entry: Listed) -> Entry | None:
        """Return what the store keeps of an entry; None where it is gone or cannot be read."""
        value = await self._ask("GET", VALUE_PREFIX + entry.key)
        if value is None:
            return None
        if entry.kind == "exact":  # its key stands in front
            value = value.removeprefix(bytes.fromhex(entry.key))
        try:
            return await asyncio.to_thread(load, value)
        except UnreadableEntry:
            return None

    async def page(self, wanted: Wanted, *, limit: int, offset: int) -> list[Listed]:
        """List entries, the longest-lived first."""
        found = await self._run(MATCHING, json.dumps(wanted.fields()), offset + limit)
        return await self._cards([slot.decode() for slot in found[offset:]])

    async def totals(self) -> Totals:
        """Count everything, in pieces."""
        totals = Totals()
        slots = await self._run(MATCHING, "{}", MAX_COUNTED + 1)
        totals.is_whole = len(slots) <= MAX_COUNTED
        for some in _pieces([slot.decode() for slot in slots[:MAX_COUNTED]], _CARDS_AT_ONCE):
            for by, name, entries, size_bytes, hits, saved_usd in await self._run(SUMS, *some):
                one = totals.of(by.decode(), name.decode())
                one.add(int(entries), int(size_bytes), int(hits), float(saved_usd))
        return totals

    async def counts(self) -> dict[str, float]:
        """Return what happened since the store is empty: `kept`, `evicted`, `invalidated`, `hits_exact`, ..."""
        words = await self._ask("HGETALL", f"{CATALOGUE_PREFIX}n")
        return {name.decode(): float(value) for name, value in zip(words[::2], words[1::2], strict=True)}

    async def invalidations(self, *, limit: int = 20) -> list[dict[str, Any]]:
        """Return the latest invalidations with who, when and what, the newest first."""
        cuts = await self._ask("ZREVRANGE", f"{CATALOGUE_PREFIX}cuts", 0, limit - 1)
        return [{**(told := json.loads(cut)), "number": int(told["number"])} for cut in cuts]

    async def eviction_policy(self) -> str | None:
        """Name what the server drops when its memory is full (`maxmemory_policy`); None where it does not say."""
        text = await self._ask("INFO", "memory")
        lines = (line.partition(":") for line in text.decode().splitlines())
        return next((value for name, _, value in lines if name == "maxmemory_policy"), None)

    async def count_hits(self, hits: Mapping[str, int]) -> int:
        """Count hits by store's key; returns the number of the latest invalidation."""
        words = [word for key, count in hits.items() for word in (key, count)]
        return int(await self._run(HITS, repr(PRICE_POWER), repr(HALF_LIFE_TURNS), *words))

    async def sweep(self) -> list[Row]:
        """Take out some of what is over or was dropped by the server; returns the rows of the latter."""
        return rows_of(await self._run(SWEEP))

    async def without_value(self, rows: Sequence[Row]) -> list[Row]:
        """Return those rows whose entries have no value any more."""
        there = await asyncio.gather(*(self._ask("EXISTS", VALUE_PREFIX + semantic_key(entry)) for _, entry in rows))
        return [row for row, exists in zip(rows, there, strict=True) if not exists]

    async def aclose(self) -> None:
        """Close the connection."""
        self._link.close()
        await asyncio.sleep(0)  # the event loop lets go of it in its next turn

    async def _cut(self, fields: Mapping[str, Any]) -> list[str]:
        """Let nothing be kept any more that these fields cover; returns the slots that are to be forgotten."""
        _, *slots = await self._run(CUT, json.dumps(fields), _MAX_CUTS)
        return [slot.decode() for slot in slots]

    async def _forget(self, slots: Sequence[str]) -> Taken:
        count, rows = 0, list[Row]()
        for some in _pieces(slots, _SLOTS_AT_ONCE):
            num_taken, *words = await self._run(FORGET, "invalidated", *some)
            count += num_taken
            rows += rows_of(words)
        return Taken(count, tuple(rows))

    async def _card(self, slot: str) -> Listed | None:
        found = await self._cards([slot])
        return found[0] if found else None

    async def _cards(self, slots: Sequence[str]) -> list[Listed]:
        """Return the cards that there are; those of values that are gone already are left out."""
        asked = (self._ask("HGETALL", f"{CATALOGUE_PREFIX}e:{slot}") for slot in slots)
        there = (self._ask("EXISTS", VALUE_PREFIX + slot) for slot in slots)
        cards, is_there = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*there))
        return [
            _listed(slot, dict(zip(card[::2], card[1::2], strict=True)))
            for slot, card, exists in zip(slots, cards, is_there, strict=True)
            if card and exists
        ]

    async def _run(self, script: Script, *words: str | int | bytes) -> Any:
        return _checked(await run_script(self._link, script, CATALOGUE_PREFIX, VALUE_PREFIX, *words))

    async def _ask(self, *words: str | int | bytes) -> Any:
        return _checked(await self._link.ask(*words))


def _checked(answer: Any) -> Any:
    if isinstance(answer, hiredis.ReplyError):
        raise StoreDown(f"the key-value store refuses ({str(answer).partition(' ')[0]})") from answer
    return answer


def _listed(slot: str, card: Mapping[bytes, bytes]) -> Listed:
    words = {name.decode(): value.decode() for name, value in card.items()}
    return Listed(
        key=slot,
        id=words["id"],
        kind=words["kind"],
        call=words["call"],
        tenant=words["tenant"],
        model=words["model"],
        real_model=words["real"],
        tags=tuple(tag for tag in words["tags"].split(",") if tag),
        size_bytes=int(words["size"]),
        hits=int(words["hits"]),
        saves_usd=float(words["saves"]),
        created_at=int(words["at"]) / 1000.0,
        ends_at=int(words["ends"]) / 1000.0,
        partition=words["partition"] or None,
        twin=words["twin"] or None,
    )


def _pieces(slots: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for place in range(0, len(slots), size):
        yield slots[place : place + size]
