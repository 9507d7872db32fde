"""The exact key: the whole request but for a few fields that cannot change an answer."""

from __future__ import annotations

import hashlib
import json

from orchestration.core import Call

KEY_VERSION = 1
"""Counts up whenever the same call would get another key."""

DENIED_FIELDS = frozenset(
    {"stream", "stream_options", "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "priority"}
)
"""Top-level fields that say how an answer travels, when or for whom it is counted, never what it says."""

# ASCII escapes give half a surrogate pair a byte form. `json.dumps` would make an encoder for each key.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)


def exact_key(call: Call, *, route: str, policy: str) -> str:
    """Return the key (64 hexadecimal digits) under which this call's answer is kept.

    It covers every field that was sent but `DENIED_FIELDS`, whatever its name, and the tenant, the namespace, the
    kind, the alias, `route` (hash of what the alias stands for) and `policy` (hash of the checks in force). The
    dialect is no part of it, nor is the order of fields. Values are told apart as JSON text tells them: 1, 1.0,
    true and "1" are four values, since a template may print them differently, and a key too many costs one call
    where a key too few costs a wrong answer. Absent and null differ; NaN equals itself.
    """
    fields = {name: value for name, value in call.request.fields.items() if name not in DENIED_FIELDS}
    alias = call.request.model
    whole = [KEY_VERSION, call.kind.value, call.tenant, call.controls.namespace, alias, route, policy, fields]
    # A list of known length needs no separators of ours.
    return hashlib.sha256(_CANONICAL.encode(whole).encode("ascii")).hexdigest()
