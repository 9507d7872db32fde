"""A wrong answer is served no more: which stored values a call's answer came from, or went into, and their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cache.partition import Question
from cache.store import Store
from orchestration.core import CacheStatus


def keys_of(record: Mapping[str, Any], *, question: str | None) -> tuple[str, ...]:
    """Return the store's keys of a recorded call's answer; `question` is its last user text, None if it is not known.

    A hit names what it came from, and the alias that led there. A miss names what it was stored as: its exact entry,
    and the semantic one of its question.
    """
    cache = record["cache"]
    exact = (cache["key"],) if cache["key"] and (cache["was_stored"] or cache["status"] == CacheStatus.EXACT) else ()
    asked = Question(cache["partition"], question) if question is not None and cache["partition"] else None
    if cache["status"] == CacheStatus.SEMANTIC:
        aliases = (alias_key(asked),) if asked is not None and cache.get("is_alias") else ()
        return (*exact, semantic_key(cache["entry"]), *aliases)
    if cache["status"] == CacheStatus.MISS and asked is not None:
        return (*exact, semantic_key(asked.entry))
    return exact


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
