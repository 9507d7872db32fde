"""JSON as the log writes it: fast, and never refused because of what a client sent."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import orjson


def encode(value: Any, *, is_canonical: bool = False) -> bytes:
    """Write a value as one line of JSON; dataclasses become objects, what JSON does not know becomes its text.

    Canonical JSON has its keys sorted. Raises `ValueError` for a value that is nested too deeply to be written.
    """
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS if is_canonical else None)
    except TypeError:
        return _encode_slowly(value, is_canonical=is_canonical)


def decode(data: bytes | str) -> Any:
    """Read JSON; raises `ValueError` where it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def _encode_slowly(value: Any, *, is_canonical: bool) -> bytes:
    # orjson refuses integers over 64 bits, lone surrogates, keys that are no text and nesting over 254.
    try:
        text = json.dumps(value, default=_plain, sort_keys=is_canonical, separators=(",", ":"))
    except (RecursionError, TypeError) as exc:
        raise ValueError(f"a value cannot be written as JSON: {exc}") from exc
    return text.encode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)
