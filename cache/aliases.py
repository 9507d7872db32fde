"""Questions that a judge said another question's answer serves: exactly these words, in exactly this partition."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgpack

from cache.entry import Entry
from cache.partition import Question
from cache.quarantine import alias_key
from cache.store import Store


@dataclass(frozen=True, slots=True)
class Alias:
    """The entry that answers a question. `entry_call` is the call whose answer it held when it was judged: an entry
    that was made anew since is another one. `similarity` is the cosine of the two questions.
    """

    entry: str
    entry_call: str
    similarity: float

    def is_of(self, entry: Entry) -> bool:
        """Tell whether this is still the answer that was there when the judge said so."""
        return entry.id == self.entry and entry.call_id == self.entry_call


class Aliases:
    """Keep aliases in the entries' store, each as long as its entry; every method raises `StoreDown`."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def find(self, question: Question) -> Alias | None:
        """Return the question's alias, None where it has none."""
        packed = await self._store.get(alias_key(question))
        if packed is None:
            return None
        try:
            match msgpack.unpackb(packed):
                case [str(entry), str(entry_call), float(similarity)]:
                    return Alias(entry, entry_call, similarity)
        except (ValueError, msgpack.UnpackException):
            pass  # of another version, or damaged: to a cache that is a miss
        return None

    async def keep(self, question: Question, entry: Entry, *, similarity: float) -> bool:
        """Have the entry answer the question for the rest of the entry's life; tells whether any is left."""
        left_s = entry.ttl_s - entry.age_s(self._clock())
        if left_s <= 0.0:
            return False
        await self._store.put(
            alias_key(question), msgpack.packb([entry.id, entry.call_id, float(similarity)]), ttl_s=left_s
        )
        return True
