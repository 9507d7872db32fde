"""A request in OpenAI's shape, told as Anthropic's API has it. What it cannot say is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from backends.anthropic.turns import build_turns
from backends.rest import REST
from orchestration.core.errors import InvalidRequest
from orchestration.core.request import Request

Json = Mapping[str, Any]

DEFAULT_MAX_TOKENS = 4096
"""The API wants a limit; this one, which all its models can do, where the client states none."""

# Told in another way below, or without a meaning there; the rest goes along as it came.
_TAKEN = frozenset(
    {
        "model", "messages", "max_tokens", "max_completion_tokens", "stop", "user", "tools", "tool_choice",
        "parallel_tool_calls", "response_format", "reasoning_effort", "stream_options", "n", "top_k", REST,
        "store", "metadata", "service_tier", "prompt_cache_key", "safety_identifier", "seed", "verbosity",
    }
)  # fmt: skip
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "min_p": (0,),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "ignore_eos": (False,),
}
_LEFT_OUT = ("metadata", "prompt_cache_key", "safety_identifier", "seed", "service_tier", "store", "verbosity")
"""What has no meaning there; the client is told that it was left out."""
_EFFORTS = ("low", "medium", "high")
_CHOICES = {"none": "none", "auto": "auto", "required": "any"}


def build_body(request: Request) -> dict[str, Any]:
    """Return the body, but for the model's name; raises `InvalidRequest` that names the field."""
    fields = {name: value for name, value in request.fields.items() if value is not None}
    _refuse_unsupported(fields)
    system, turns = build_turns(request.messages)
    body = {name: value for name, value in fields.items() if name not in _TAKEN and name not in _WITHOUT_EFFECT}
    body["max_tokens"] = fields.get("max_completion_tokens") or fields.get("max_tokens", DEFAULT_MAX_TOKENS)
    body["messages"] = turns
    if system:
        body["system"] = system
    if fields.get("stop"):
        body["stop_sequences"] = [fields["stop"]] if isinstance(fields["stop"], str) else fields["stop"]
    if fields.get("top_k", 0) > 0:
        body["top_k"] = fields["top_k"]
    return body | _build_tools(fields) | _build_rest(fields)


def left_out(request: Request) -> tuple[str, ...]:
    """Name the fields in OpenAI's shape that the API is not told of."""
    fields = request.fields
    names = [name for name in _LEFT_OUT if fields.get(name)]
    if fields.get("reasoning_effort") not in (None, *_EFFORTS):
        names.append("reasoning_effort")
    return tuple(names)


def _refuse_unsupported(fields: Json) -> None:
    for name, harmless in _WITHOUT_EFFECT.items():
        if name in fields and fields[name] not in harmless:
            known = orjson.dumps(harmless[0]).decode()
            raise InvalidRequest(f"'{name}' other than {known} is not known to this model's API.", param=name)
    temperature = fields.get("temperature", 0)
    if isinstance(temperature, int | float) and temperature > 1:
        raise InvalidRequest(f"This model takes a 'temperature' from 0 to 1, not {temperature}.", param="temperature")


def _build_tools(fields: Json) -> dict[str, Any]:
    if not fields.get("tools"):
        return {}
    built: dict[str, Any] = {"tools": [_build_tool(tool) for tool in fields["tools"]]}
    choice = _build_choice(fields.get("tool_choice"))
    if fields.get("parallel_tool_calls") is False:
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    if choice is not None:
        built["tool_choice"] = choice
    return built


def _build_tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    function = tool["function"]
    built = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    built |= {key: function[key] for key in ("description", "strict") if function.get(key) is not None}
    return {**built, **tool.get(REST, {})}


def _build_choice(choice: Any) -> Json | None:
    if choice is None:
        return None
    if isinstance(choice, str) and choice in _CHOICES:
        return {"type": _CHOICES[choice]}
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        return {"type": "tool", "name": choice["function"].get("name")}
    raise InvalidRequest("This 'tool_choice' is not known to this model's API.", param="tool_choice")


def _build_rest(fields: Json) -> dict[str, Any]:
    """Put together what came under `anthropic`, and what joins it there."""
    rest = dict(fields.get(REST) or {})
    rest.pop("beta", None)  # it goes as a header
    if "user" in fields:
        rest["metadata"] = {**rest.get("metadata", {}), "user_id": fields["user"]}
    config = dict(rest.pop("output_config", {}))
    wanted = fields.get("response_format", {"type": "text"})
    match wanted.get("type"):
        case "text":
            pass
        case "json_schema" if isinstance(wanted.get("json_schema"), dict):
            config["format"] = {"type": "json_schema", "schema": wanted["json_schema"].get("schema")}
        case _:
            raise InvalidRequest(
                f"A 'response_format' of type '{wanted.get('type')}' is not known to this model's API; "
                "'json_schema' is.",
                param="response_format",
            )
    if fields.get("reasoning_effort") in _EFFORTS:
        config.setdefault("effort", fields["reasoning_effort"])
    return {**rest, "output_config": config} if config else rest
