"""Readers of a request's fields that check the type and the range, and name the field where they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestration.core.errors import InvalidRequest

Fields = Mapping[str, Any]


def read_number(fields: Fields, name: str, *, default: float, low: float, high: float) -> float:
    """Return a number in [low, high], the default where the field is absent or null."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequest(f"'{name}' must be a number from {low:g} to {high:g}, not {told(value)}.", param=name)
    return float(value)


def read_integer(fields: Fields, name: str, *, low: int, high: int) -> int | None:
    """Return a whole number in [low, high], None where the field is absent or null."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"'{name}' must be a whole number from {low} to {high}, not {told(value)}.", param=name)
    return value


def read_truth(fields: Fields, name: str) -> bool:
    """Return true or false, false where the field is absent or null."""
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"'{name}' must be true or false, not {told(value)}.", param=name)
    return bool(value)


def told(value: Any) -> str:
    """Write a value as the client did, in JSON, cut to 80 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
