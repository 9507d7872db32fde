"""A body of the responses API, checked and told in the chat's shape; what needs stored state is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import fields as check
from gateway.dialects.responses_items import read_items
from gateway.dialects.responses_tools import SHELL, read_tool
from orchestration.core.errors import InvalidRequest

Json = Mapping[str, Any]
_NEEDS_STATE = ("previous_response_id", "conversation", "prompt")


def read_fields(sent: Json) -> dict[str, Any]:
    """Return the request's fields in the chat's shape; raises `InvalidRequest` that names the field."""
    left = {name: value for name, value in sent.items() if value is not None}
    check.require(left, "model")
    check.require(left, "input")
    check.check_fields(left, _CHECKS)
    _refuse_state(left)
    fields: dict[str, Any] = {name: left.pop(name) for name in _SAME if name in left}
    fields["messages"] = _read_messages(left)
    if "max_output_tokens" in left:
        fields["max_completion_tokens"] = left["max_output_tokens"]
    fields.update(_read_text(left.get("text", {})), **_read_tools(left))
    effort = left.get("reasoning", {}).get("effort")
    if effort is not None:
        check.string("reasoning.effort", effort)
        fields["reasoning_effort"] = effort
    return fields | {name: value for name, value in left.items() if name not in _TAKEN}


def _refuse_state(left: Json) -> None:
    for name in _NEEDS_STATE:
        if name in left:
            raise _not_built(name, f"'{name}' needs answers that are stored, and none are here: send the whole input.")
    if left.get("store") is True:
        raise _not_built("store", "Answers are not stored here: leave 'store' out, or send false.")
    if left.get("background") is True:
        raise _not_built("background", "Answers are given at once here: leave 'background' out, or send false.")
    if left.get("truncation") not in (None, "disabled"):
        raise _not_built("truncation", "Inputs are not cut here: leave 'truncation' out, or send 'disabled'.")
    if left.get("include") and left["include"] != ["reasoning.encrypted_content"]:
        raise _not_built("include", "This endpoint has nothing to include; leave 'include' out.")
    if left.get("top_logprobs"):
        raise _not_built("top_logprobs", "This endpoint gives no logprobs; /v1/chat/completions does.")


def _read_messages(left: Json) -> list[Json]:
    said = left["input"]
    messages: list[Json] = [] if "instructions" not in left else [{"role": "system", "content": left["instructions"]}]
    if type(said) is str:
        return [*messages, {"role": "user", "content": said}]
    if type(said) is not list:
        raise check.wrong_type("input", "a string or an array of items", said)
    return [*messages, *read_items("input", said)]


def _read_text(text: Json) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        check.string("text.verbosity", text["verbosity"])
        found["verbosity"] = text["verbosity"]
    wanted = text.get("format")
    if wanted is None:
        return found
    check.json_object("text.format", wanted)
    check.one_of("text", "json_object", "json_schema")("text.format.type", wanted.get("type"))
    if wanted["type"] == "json_schema":
        check.filled_string("text.format.name", wanted.get("name"))
        check.json_object("text.format.schema", wanted.get("schema"))
        schema = {name: value for name, value in wanted.items() if name != "type"}
        return {**found, "response_format": {"type": "json_schema", "json_schema": schema}}
    return found if wanted["type"] == "text" else {**found, "response_format": {"type": "json_object"}}


def _read_tools(left: Json) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if left.get("tools"):
        found["tools"] = [_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(left["tools"])]
    choice = left.get("tool_choice")
    if type(choice) is str:
        check.one_of("none", "auto", "required")("tool_choice", choice)
        found["tool_choice"] = choice
    elif choice is not None:
        check.json_object("tool_choice", choice)
        check.one_of("function", "custom", "local_shell")("tool_choice.type", choice.get("type"))
        name = SHELL if choice["type"] == "local_shell" else choice.get("name")
        check.filled_string("tool_choice.name", name)
        found["tool_choice"] = {"type": "function", "function": {"name": name}}
    return found


def _read_tool(name: str, tool: Any) -> Json:
    check.json_object(name, tool)
    check.string(f"{name}.type", tool.get("type"))
    if tool["type"] != "function":
        return read_tool(name, tool)
    check.filled_string(f"{name}.name", tool.get("name"))
    function = {key: tool[key] for key in _FUNCTION if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _not_built(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=name, code="unsupported_parameter")


_FUNCTION = ("name", "description", "parameters", "strict")
_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "user")
# Told in another way, or with no effect on the answer.
_TAKEN = frozenset(
    {
        "input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "reasoning", "store", "metadata",
        "background", "truncation", "include", "top_logprobs", "stream_options", "service_tier",
    }
)  # fmt: skip
_CHECKS: Mapping[str, check.FieldCheck] = {
    "model": check.model_name,
    "instructions": check.string,
    "max_output_tokens": check.integer(1),
    "temperature": check.number(0, 2),
    "top_p": check.number(0, 1),
    "stream": check.boolean,
    "parallel_tool_calls": check.boolean,
    "user": check.string,
    "tools": check.array,
    "text": check.json_object,
    "reasoning": check.json_object,
    "metadata": check.json_object,
    "store": check.boolean,
    "background": check.boolean,
    "truncation": check.string,
    "include": check.array,
    "top_logprobs": check.integer(0, 20),
    "previous_response_id": check.string,
}
