"""Read a check's options one by one, so that a wrong one is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def read_texts(
    options: Mapping[str, Any], name: str, *, default: Sequence[str] | None = None, at_most: int = 10_000
) -> tuple[str, ...]:
    """Return a list of texts, none empty; raises `ValueError` where it is none, is empty, or absent with no default."""
    value = read(options, name, list)
    if value is None and default is not None:
        return tuple(default)
    if not value or not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError(f"{name}: must be a list of texts, none of them empty")
    if len(value) > at_most:
        raise ValueError(f"{name}: has {len(value)} elements; at most {at_most} are taken")
    return tuple(value)


def read_words(
    options: Mapping[str, Any], name: str, known: Sequence[str], *, default: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return a list of texts as `read_texts` does; raises `ValueError` for the first that is not among the known."""
    words = read_texts(options, name, default=default)
    for word in words:
        if word not in known:
            raise ValueError(f"{name}: '{word}' is not known; known: {', '.join(known)}")
    return words


def read_share(options: Mapping[str, Any], name: str, *, default: float) -> float:
    """Return a number from 0 to 1; raises `ValueError` for another."""
    value = float(read(options, name, float, default=default))
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: must be from 0 to 1, not {value:g}")
    return value


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise `ValueError` for the first option that is not known, listing those that are."""
    allowed = sorted(known)
    for name in options:
        if name not in allowed:
            raise ValueError(f"{name}: no such option here; known: {', '.join(allowed) or 'none'}")


_NAMES = {int: "a whole number", bool: "true or false", str: "a text", list: "a list", float: "a number", dict: "a map"}
