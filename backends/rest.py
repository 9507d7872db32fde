"""What another dialect's clients said beyond OpenAI's shape: kept under the dialect's name, for its own backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestration.core.errors import InvalidRequest
from orchestration.core.request import Request

REST = "anthropic"
"""The key of what only Anthropic's API knows; see `gateway/dialects/anthropic_request.py`."""

_WORK = ("mcp_servers", "container")
_SAYS_NOTHING = frozenset({*_WORK, "beta", "stream"})  # `beta` is a header's
_NOTHING: tuple[Any, ...] = ({}, [], {"type": "disabled"})


def without_rest(request: Request) -> Mapping[str, Any]:
    """Return the fields without what only the client's own dialect knows; OpenAI's clients' fields as they came."""
    if request.dialect.startswith("openai."):
        return request.fields
    fields = _without(request.fields)
    for name in ("messages", "tools"):
        if name in fields:
            fields[name] = [_plain(item) for item in fields[name]]
    return fields


def left_out(request: Request) -> tuple[str, ...]:
    """Name the request's fields that a backend of another dialect is not told of, so that the client can be.

    Raises `InvalidRequest` for those that want work done which only servers of that dialect do.
    """
    if request.dialect.startswith("openai."):
        return ()
    rest = request.fields.get(REST) or {}
    for name in _WORK:
        if rest.get(name):
            raise InvalidRequest(f"'{name}' is not known to this model's API.", param=name)
    return tuple(name for name, value in rest.items() if name not in _SAYS_NOTHING and value not in _NOTHING)


def _plain(item: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = _without(item)
    for name in ("content", "tool_calls"):
        if isinstance(plain.get(name), list):
            plain[name] = [_without(part) for part in plain[name]]
    return plain


def _without(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in holder.items() if name != REST}
