"""Who may share an answer: everything about a call but the last user text, as one fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cache.context import CONTEXT_VERSION, MultiTurn, normalised, stands_alone, without_history
from cache.key import exact_key
from orchestration.core import Call, Kind

PARTITION_VERSION = 1
"""Counts up whenever the same call would get another partition; the key's own version is inside as well."""

MAX_TEMPERATURE = 0.3
MAX_TEXT_CHARS = 20_000
"""Longer texts have more tokens than an encoder takes, whatever they are made of; they are not even sent."""

_EXCLUDING_FIELDS = ("tools", "functions", "logprobs", "top_logprobs", "audio", "web_search_options")
_SEVERAL_PARTS = "\n"


@dataclass(frozen=True, slots=True)
class Question:
    """The text to look up, and the partition of its entry (64 hexadecimal digits).

    `asked_alone` is the partition of the same question without its history, where it may be looked for there.
    """

    partition: str
    text: str
    asked_alone: str | None = None

    @property
    def searched(self) -> str:
        """Return the partition to look in. What a conversation was answered is never kept there: it may speak of what
        was said before, and others ask there.
        """
        return self.asked_alone or self.partition

    @property
    def entry(self) -> str:
        """Name the entry of this very question: asked again, it replaces its answer."""
        return hashlib.sha256(f"{self.partition}\0{self.text}".encode()).hexdigest()[:32]


def why_ineligible(call: Call) -> str | None:
    """Say in a word why the semantic tier takes no part in the call, or None where it does.

    It takes part in a chat for one answer, without tools or logprobs, whose temperature is stated and at most 0.3
    (a missing one is the model's default, not 0) and whose last message is the user's text alone.
    """
    request = call.request
    if call.kind is not Kind.CHAT:
        return "kind"
    if request.fields.get("n") not in (None, 1):
        return "several_answers"
    excluding = next((name for name in _EXCLUDING_FIELDS if request.fields.get(name)), None)
    if excluding is not None:
        return excluding
    temperature = request.fields.get("temperature")
    if not isinstance(temperature, int | float) or isinstance(temperature, bool):
        return "temperature_unstated"
    if not 0 <= temperature <= MAX_TEMPERATURE:
        return "temperature"
    return _why_unfit(last_text(request.messages))


def question_of(call: Call, *, route: str, policy: str, multi_turn: MultiTurn = MultiTurn.STRICT) -> Question:
    """Return the text and the partition of an eligible call.

    The partition covers what the exact key covers, the last user text blanked: its place, its number of parts and
    whatever else the message says stay in. In relaxed mode earlier user turns count without case, spacing and stops.
    """
    messages = call.request.messages
    text = last_text(messages)
    assert text is not None, "the call is eligible"
    if multi_turn is MultiTurn.STRICT:
        return Question(_partition(call, messages, f"{PARTITION_VERSION}", route=route, policy=policy), text)
    version = f"{PARTITION_VERSION} relaxed {CONTEXT_VERSION}"
    alone = without_history(messages) if stands_alone(text) else None
    return Question(
        _partition(call, [*normalised(messages[:-1]), messages[-1]], version, route=route, policy=policy),
        text,
        None if alone is None else _partition(call, alone, version, route=route, policy=policy),
    )


def _partition(call: Call, messages: Sequence[Mapping[str, Any]], version: str, *, route: str, policy: str) -> str:
    *earlier, last = messages
    blanked = call.request.with_fields(messages=[*earlier, {**last, "content": _blank(last["content"])}])
    key = exact_key(replace(call, request=blanked), route=route, policy=policy)
    return hashlib.sha256(f"semantic {version} {key}".encode()).hexdigest()


def _why_unfit(text: str | None) -> str | None:
    if text is None:
        return "last_message"
    if not text.strip():
        return "empty_text"
    if len(text) > MAX_TEXT_CHARS:
        return "too_long"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "unreadable"
    return None


def last_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the last message's text where it is a user's text and nothing else."""
    if not messages or messages[-1].get("role") != "user":
        return None
    match messages[-1].get("content"):
        case str(text):
            return text
        case [*parts] if parts and all(_is_text(part) for part in parts):
            return _SEVERAL_PARTS.join(part["text"] for part in parts)
        case _:
            return None


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _blank(content: Any) -> Any:
    return "" if isinstance(content, str) else [{**part, "text": ""} for part in content]
