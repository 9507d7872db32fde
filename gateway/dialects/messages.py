"""Checks of chat messages: the roles, and what each may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import fields as check
from orchestration.core.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SAYS_WITHOUT_CONTENT = ("tool_calls", "function_call", "audio", "refusal", "reasoning_content")
_CHECK_ROLE = check.one_of(*ROLES)


def check_messages(name: str, value: Any) -> None:
    """Accept a list of at least one message."""
    check.array(name, value)
    if not value:
        raise InvalidRequest(
            f"Invalid '{name}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            param=name,
            code="empty_array",
        )
    for index, message in enumerate(value):
        _check_message(f"{name}[{index}]", message)


def _check_message(name: str, message: Any) -> None:
    check.json_object(name, message)
    role = message.get("role")
    if role is None:
        raise _missing(f"{name}.role")
    _CHECK_ROLE(f"{name}.role", role)
    content = message.get("content")
    if content is not None:
        _check_content(f"{name}.content", content)
    elif role != "assistant" or all(message.get(field) is None for field in _SAYS_WITHOUT_CONTENT):
        raise _missing(f"{name}.content")
    if len(message) > 2 or content is None:
        _check_rest(name, message)


def _check_rest(name: str, message: Mapping[str, Any]) -> None:
    for field in ("name", "refusal", "reasoning_content", "tool_call_id"):
        if message.get(field) is not None:
            check.string(f"{name}.{field}", message[field])
    if message.get("tool_calls") is not None:
        _check_tool_calls(f"{name}.tool_calls", message["tool_calls"])


def _check_content(name: str, content: Any) -> None:
    if type(content) is str:
        return
    if type(content) is not list:
        raise check.wrong_type(name, "a string or an array of content parts", content)
    if not content:
        raise check.wrong_value(name, "at least one content part", content)
    for index, part in enumerate(content):
        _check_part(f"{name}[{index}]", part)


def _check_part(name: str, part: Any) -> None:
    """Check the parts that something here looks into; a kind of part we do not know is its backend's business."""
    check.json_object(name, part)
    kind = part.get("type")
    if kind is None:
        raise _missing(f"{name}.type")
    check.string(f"{name}.type", kind)
    match kind:
        case "text" | "refusal":
            _check_inner(name, part, kind, check.string)
        case "image_url":
            _check_inner(name, part, kind, check.json_object)
            _check_inner(f"{name}.image_url", part["image_url"], "url", check.string)
        case "input_audio" | "file":
            _check_inner(name, part, kind, check.json_object)
        case _:
            pass


def _check_tool_calls(name: str, calls: Any) -> None:
    check.array(name, calls)
    for index, call in enumerate(calls):
        at = f"{name}[{index}]"
        check.json_object(at, call)
        _check_inner(at, call, "id", check.string)
        if call.get("type", "function") != "function":
            check.string(f"{at}.type", call["type"])
            continue
        _check_inner(at, call, "function", check.json_object)
        _check_inner(f"{at}.function", call["function"], "name", check.string)
        _check_inner(f"{at}.function", call["function"], "arguments", check.string)


def _check_inner(name: str, holder: Mapping[str, Any], field: str, field_check: check.FieldCheck) -> None:
    value = holder.get(field)
    if value is None:
        raise _missing(f"{name}.{field}")
    field_check(f"{name}.{field}", value)


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
