"""A chat's messages, checked and brought into the shape that templates read: texts, not lists of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestration.core.errors import InvalidRequest

_ROLES = ("system", "user", "assistant", "tool", "developer")


def read_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages with `content` as text and `developer` as `system`; raises `InvalidRequest` by field."""
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("'messages' must be a list of at least one message.", param="messages")
    return [_read_message(message, where=f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, *, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"'{where}' must be an object with 'role' and 'content'.", param=where)
    role = message.get("role")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise InvalidRequest(f"{role!r} is no role; these are: {known}.", param=f"{where}.role")
    content = _read_content(message.get("content"), where=f"{where}.content", is_optional=role == "assistant")
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def _read_content(content: Any, *, where: str, is_optional: bool) -> str:
    match content:
        case str():
            return content
        case list():
            return "".join(_read_part(part, where=f"{where}[{index}]") for index, part in enumerate(content))
        case None if is_optional:  # an assistant that only called tools
            return ""
        case _:
            raise InvalidRequest(f"'{where}' must be a text or a list of text parts.", param=where)


def _read_part(part: Any, *, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "refusal"):
        raise InvalidRequest(f"This model reads text only, '{where}' is {_describe(kind)}.", param=where)
    text = part.get(kind)
    if not isinstance(text, str):
        raise InvalidRequest(f"'{where}.{kind}' must be a text.", param=f"{where}.{kind}")
    return text


def _describe(kind: Any) -> str:
    return f"a part of the type {kind!r}" if isinstance(kind, str) else "no part with a 'type'"
