"""A wrong answer is served no more: which stored values a call's answer came from, or went into, and their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cache.partition import Question
from cache.store import Store
from orchestration.core import CacheStatus


def keys_of(record: Mapping[str, Any], *, question: str | None) -> tuple[str, ...]:
    """Return the store's keys of a recorded call's answer; `question` is its last user text, None if it is not known.

    A hit names what it came from, and the alias that led there. Any other call names what its answer was stored as:
    its exact entry, and the semantic one of its question. What an exact hit's answer was stored as besides, the record
    of the call tells that was answered first (`maker_of`).
    """
    cache = record["cache"]
    exact = (cache["key"],) if cache["key"] and (cache["was_stored"] or cache["status"] == CacheStatus.EXACT) else ()
    asked = Question(cache["partition"], question) if question is not None and cache["partition"] else None
    if cache["status"] == CacheStatus.SEMANTIC:
        aliases = (alias_key(asked),) if asked is not None and cache.get("is_alias") else ()
        return (*exact, semantic_key(cache["entry"]), *aliases)
    stored = cache.get("stored_as")
    if stored is None and cache["status"] == CacheStatus.MISS and asked is not None:
        stored = asked.entry  # older records do not name it
    return exact if stored is None else (*exact, semantic_key(stored))


def maker_of(record: Mapping[str, Any]) -> str | None:
    """Return the call whose answer to the same question an exact hit was, None for any other call."""
    cache = record["cache"]
    made_by: str | None = cache["entry_call"] if cache["status"] == CacheStatus.EXACT else None
    return made_by


def semantic_key(entry_id: str) -> str:
    """Return the store's key of a semantic entry; once it is gone the index's candidate is unusable."""
    return f"semantic:{entry_id}"


def alias_key(question: Question) -> str:
    """Return the store's key of what a judge said answers a question."""
    return f"alias:{question.entry}"


async def quarantine(store: Store, keys: tuple[str, ...]) -> None:
    """Forget the values, so that no worker and no node serves them again; raises `StoreDown`."""
    for key in keys:
        await store.delete(key)
