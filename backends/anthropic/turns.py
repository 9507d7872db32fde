"""OpenAI's messages told as Anthropic's turns: a system prompt apart, users and assistants by turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from backends.rest import REST
from orchestration.core.errors import InvalidRequest

Json = Mapping[str, Any]
_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+/-]+);base64,(?P<data>.*)", re.DOTALL)


def build_turns(messages: Sequence[Json]) -> tuple[Sequence[Json], Sequence[Json]]:
    """Return the system prompt's blocks and the turns; raises `InvalidRequest` that names the place.

    Neighbours of one role become one turn: the results of parallel tool calls have to stand in one.
    """
    system: list[Json] = []
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        role = message.get("role")
        match role:
            case "system" | "developer":
                system += _build_parts(at, message.get("content"))
                continue
            case "user":
                blocks = list(_build_parts(at, message.get("content")))
            case "assistant":
                role, blocks = "assistant", list(_build_assistant(at, message))
            case "tool":
                role, blocks = "user", [_build_result(at, message)]
            case _:
                raise InvalidRequest(f"This model's API knows no role '{role}'.", param=f"{at}.role")
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _build_assistant(at: str, message: Json) -> Iterator[Json]:
    """Say what it thought first: a signed thought has to stand before what followed from it."""
    yield from message.get(REST, {}).get("thinking", ())
    yield from _build_parts(at, message.get("content"))
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        try:
            arguments = orjson.loads(function.get("arguments") or "{}")
        except orjson.JSONDecodeError as exc:
            name = f"{at}.tool_calls[{place}].function.arguments"
            raise InvalidRequest(f"'{name}' is no JSON.", param=name) from exc
        block = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}
        yield {**block, **call.get(REST, {})}


def _build_result(at: str, message: Json) -> Json:
    if not message.get("tool_call_id"):
        name = f"{at}.tool_call_id"
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    content = message.get("content")
    told = content if isinstance(content, str) else list(_build_parts(at, content))
    block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": told}
    return {**block, **message.get(REST, {})}


def _build_parts(at: str, content: Any) -> Iterator[Json]:
    """Give the blocks of a content; empty texts, which the API refuses, are left out."""
    if isinstance(content, str):
        if content:
            yield {"type": "text", "text": content}
        return
    for place, part in enumerate(content or ()):
        block = _build_part(f"{at}.content[{place}]", part)
        if block.get("text") != "":
            # Some clients of OpenAI's shape set `cache_control` on its parts.
            marks = {"cache_control": part["cache_control"]} if part.get("cache_control") else {}
            yield {**block, **marks, **part.get(REST, {})}


def _build_part(at: str, part: Json) -> Json:
    match part.get("type"):
        case "text" | "refusal" as kind:
            return {"type": "text", "text": part[kind]}
        case "image_url":
            return {"type": "image", "source": _build_source(part["image_url"]["url"])}
        case "file" if "file_data" in part["file"]:
            return {"type": "document", "source": _build_source(part["file"]["file_data"])}
        case "input_audio" | "file" as kind:
            raise InvalidRequest(f"This model's API takes no part of type '{kind}' like this.", param=at)
        case _:
            return part


def _build_source(url: str) -> Json:
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"type": "url", "url": url}
    return {"type": "base64", **found.groupdict()}
