"""Read a check's options one by one, so that a wrong one is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def read(options: Mapping[str, Any], name: str, kind: type, *, default: Any = None) -> Any:
    """Return an option, or the default where it is absent or null; raises `ValueError` for one of another type."""
    value = options.get(name)
    if value is None:
        return default
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{name}: must be {_NAMES.get(kind, kind.__name__)}, not {value!r}")
    return value


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise `ValueError` for the first option that is not known, listing those that are."""
    allowed = sorted(known)
    for name in options:
        if name not in allowed:
            raise ValueError(f"{name}: no such option here; known: {', '.join(allowed) or 'none'}")


_NAMES = {int: "a whole number", bool: "true or false", str: "a text", list: "a list", float: "a number"}
