"""The exact key: the whole request but for a few fields that cannot change an answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from orchestration.core import Call

KEY_VERSION = 2
"""Counts up whenever the same call would get another key."""

DENIED_FIELDS = frozenset(
    {"stream", "stream_options", "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "priority"}
)
"""Top-level fields that say how an answer travels, when or for whom it is counted, never what it says."""

NUMBERS = frozenset({"temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"})
"""Top-level fields that are real numbers to every server, so that 0, 0.0 and -0.0 ask for the same answer."""

_LARGEST_EXACT = 2**53

# ASCII escapes give half a surrogate pair a byte form. `json.dumps` would make an encoder for each key.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)


def exact_key(call: Call, *, route: str, policy: str) -> str:
    """Return the key (64 hexadecimal digits) under which this call's answer is kept.

    It covers every field that was sent but `DENIED_FIELDS`, whatever its name, and the tenant, the namespace, the
    kind, the alias, `route` (hash of what the alias stands for) and `policy` (hash of the checks in force). The
    dialect is no part of it, nor is the order of fields, nor how one of `NUMBERS` is spelled. Other values are told
    apart as JSON text tells them: 1, 1.0, true and "1" are four values, since a template may print them differently,
    and a key too many costs one call where a key too few costs a wrong answer. Absent and null differ; NaN equals
    itself.
    """
    fields = {
        name: _as_number(value) if name in NUMBERS else value
        for name, value in call.request.fields.items()
        if name not in DENIED_FIELDS
    }
    alias = call.request.model
    whole = [KEY_VERSION, call.kind.value, call.tenant, call.controls.namespace, alias, route, policy, fields]
    # A list of known length needs no separators of ours.
    return hashlib.sha256(_CANONICAL.encode(whole).encode("ascii")).hexdigest()


def _as_number(value: Any) -> Any:
    """Return a number that a float holds exactly as that float, and anything else as it is."""
    if type(value) is float:
        return value + 0.0  # -0.0 becomes 0.0
    return float(value) if type(value) is int and abs(value) <= _LARGEST_EXACT else value
