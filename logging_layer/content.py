"""What of a call's texts enters the log: everything, their shape alone, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORDS = frozenset(
    [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "function",
        "text",
        "image_url",
        "input_text",
        "input_image",
        "input_audio",
        "file",
        "refusal",
        "tool_use",
        "tool_result",
        "json_object",
        "json_schema",
        "auto",
        "none",
        "required",
    ]
)
"""Values that are words of the API, not of the user."""
_WORD_FIELDS = frozenset({"role", "type", "tool_choice"})
_KEYS = frozenset(
    [
        "role",
        "type",
        "content",
        "text",
        "name",
        "id",
        "index",
        "tool_calls",
        "tool_call_id",
        "function",
        "arguments",
        "description",
        "parameters",
        "strict",
        "image_url",
        "input_audio",
        "url",
        "detail",
        "data",
        "format",
        "file",
        "refusal",
        "reasoning",
        "json_schema",
        "schema",
        "include_usage",
    ]
)
"""Names of nested fields that are the API's; others may be the user's words (`metadata`, a schema's properties)."""


class ContentMode(StrEnum):
    """How much of requests and answers is kept."""

    FULL = "full"
    REDACTED = "redacted"
    NONE = "none"


def redact(value: Any) -> Any:
    """Keep a request's or an answer's structure, roles and lengths, and none of its texts or numbers.

    A text becomes `{"redacted": "text", "length": characters}`, a list of numbers (a prompt as token ids, an
    embedding) its length. Booleans stay, and so do numbers that are fields of the outermost object (the sampling),
    and words and nested names that the API itself defines.
    Deterministic, so that two equal shapes stay equal; no hash of a text is kept, since short ones can be guessed.
    """
    if isinstance(value, Mapping):
        return {
            key if _IDENTIFIER.fullmatch(str(key)) else _hidden_key(key): item
            if _is_number(item)
            else _hidden(item, key)
            for key, item in value.items()
        }
    return _hidden(value)


def masked(value: Any, mask: Callable[[str], str]) -> Any:
    """Pass every text inside a value through `mask`; keys stay."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 - an abstract class takes ten times as long
        return {key: masked(item, mask) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, mask) for item in value]
    return value


def _hidden(value: Any, key: Any = None) -> Any:
    if isinstance(value, str):
        return value if key in _WORD_FIELDS and value in _WORDS else {"redacted": "text", "length": len(value)}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {key if key in _KEYS else _hidden_key(key): _hidden(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and _is_number(value[0]):
            return {"redacted": "numbers", "length": len(value)}
        return [_hidden(item) for item in value]
    return {"redacted": "number"}


def _hidden_key(key: Any) -> str:
    return f"redacted-key-{len(str(key))}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
