"""A body in Anthropic's shape, checked and told in OpenAI's.

What has no place in OpenAI's shape is kept under the key `anthropic` of the object that it stood in (the request, a
message, a content part, a tool), so that nothing is lost and a backend of another kind can leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.body import parse_object
from gateway.dialects import fields as check
from gateway.dialects.anthropic_turns import read_system, read_turns, with_rest
from orchestration.core.errors import InvalidRequest

Json = Mapping[str, Any]
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_fields(body: bytes, headers: Mapping[bytes, bytes], *, needs_max_tokens: bool) -> dict[str, Any]:
    """Return the request's fields in OpenAI's shape; raises `InvalidRequest` that names the field."""
    sent = {name: value for name, value in parse_object(body).items() if value is not None}
    for name in ("model", "messages", "max_tokens") if needs_max_tokens else ("model", "messages"):
        check.require(sent, name)
    check.check_fields(sent, _CHECKS)
    fields: dict[str, Any] = {name: sent.pop(name) for name in _SAME if name in sent}
    system = sent.pop("system", None)
    messages = read_turns("messages", sent.pop("messages"))
    fields["messages"] = messages if system is None else [read_system("system", system), *messages]
    fields.update(_read_stops(sent), **_read_user(sent), **_read_tools(sent), **_read_format(sent))
    beta = headers.get(b"anthropic-beta")
    if beta:
        sent["beta"] = beta.decode("latin-1")  # it may change the answer, so caches have to see it
    return with_rest(fields, sent)


def read_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Keep what the client said of the API's version and of its trials, byte for byte."""
    names = (b"anthropic-version", b"anthropic-beta")
    return {name.decode(): headers[name].decode("latin-1") for name in names if headers.get(name)}


def _read_stops(sent: dict[str, Any]) -> dict[str, Any]:
    stops = sent.pop("stop_sequences", None)
    return {"stop": stops} if stops else {}


def _read_user(sent: dict[str, Any]) -> dict[str, Any]:
    """Take the user's id out of `metadata`; what else is in there stays."""
    metadata = dict(sent.pop("metadata", {}))
    user = metadata.pop("user_id", None)
    if metadata:
        sent["metadata"] = metadata
    if user is None:
        return {}
    check.string("metadata.user_id", user)
    return {"user": user}


def _read_tools(sent: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tools = sent.pop("tools", None)
    if tools:
        found["tools"] = [_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    choice = sent.pop("tool_choice", None)
    if choice is not None:
        found["tool_choice"] = _read_choice(choice)
        if choice.get("disable_parallel_tool_use"):
            found["parallel_tool_calls"] = False
    return found


def _read_tool(name: str, tool: Any) -> Json:
    """Read a tool of the client's; one that runs at the provider is its backend's business."""
    check.json_object(name, tool)
    if tool.get("type") not in (None, "custom"):
        check.string(f"{name}.type", tool["type"])
        return dict(tool)
    check.filled_string(f"{name}.name", tool.get("name"))
    check.json_object(f"{name}.input_schema", tool.get("input_schema"))
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    used = ("type", "name", "input_schema", "description", "strict")
    rest = {key: value for key, value in tool.items() if key not in used}
    return with_rest({"type": "function", "function": function}, rest)


def _read_choice(choice: Json) -> Any:
    kind = choice.get("type")
    check.one_of("auto", "any", "none", "tool")("tool_choice.type", kind)
    if kind != "tool":
        return _CHOICES[str(kind)]
    check.filled_string("tool_choice.name", choice.get("name"))
    return {"type": "function", "function": {"name": choice["name"]}}


def _read_format(sent: dict[str, Any]) -> dict[str, Any]:
    """Take the answer's schema out of `output_config`, or where it stood before; what else is in there stays."""
    config = dict(sent.pop("output_config", {}))
    wanted, name = config.pop("format", None), "output_config.format"
    if config:
        sent["output_config"] = config
    if wanted is None:
        wanted, name = sent.pop("output_format", None), "output_format"
    if wanted is None:
        return {}
    check.json_object(name, wanted)
    check.one_of("json_schema")(f"{name}.type", wanted.get("type"))
    check.json_object(f"{name}.schema", wanted.get("schema"))
    schema = {"name": "answer", "schema": wanted["schema"], "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _check_stops(name: str, value: Any) -> None:
    check.array(name, value)
    check.stop(name, value)


def _check_thinking(name: str, value: Any) -> None:
    check.json_object(name, value)
    if type(value.get("type")) is not str:
        raise InvalidRequest(f"Missing required parameter: '{name}.type'.", param=f"{name}.type")


_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
_CHECKS: Mapping[str, check.FieldCheck] = {
    "model": check.model_name,
    "messages": check.array,
    "max_tokens": check.integer(0),  # 0 fills a provider's cache
    "temperature": check.number(0, 1),
    "top_p": check.number(0, 1),
    "top_k": check.integer(0),
    "stream": check.boolean,
    "stop_sequences": _check_stops,
    "metadata": check.json_object,
    "tools": check.array,
    "tool_choice": check.json_object,
    "output_config": check.json_object,
    "thinking": _check_thinking,
}
