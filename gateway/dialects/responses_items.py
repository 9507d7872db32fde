"""The input items of OpenAI's responses API, told as chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects import fields as check
from gateway.dialects.responses_tools import call_of
from orchestration.core.errors import InvalidRequest

Json = Mapping[str, Any]
_ROLES = ("user", "assistant", "system", "developer")


def read_items(name: str, items: Sequence[Any]) -> list[Json]:
    """Return the messages; raises `InvalidRequest` that names the place.

    What an assistant thought, said and called, item after item, becomes one message of its own.
    """
    if not items:
        raise check.wrong_value(name, "at least one item", 0)
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        at = f"{name}[{index}]"
        check.json_object(at, item)
        match item.get("type"):
            case "message" | None:
                _add_message(at, item, messages)
            case "function_call":
                _add_call(at, item, messages)
            case "custom_tool_call" | "local_shell_call":
                _add_call(at, call_of(at, item), messages)
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                messages.append(_read_output(at, item))
            case "reasoning":
                _add_thought(at, item, messages)
            case kind:
                check.string(f"{at}.type", kind)
                raise InvalidRequest(
                    f"Items of type '{kind[:64]}' are not read here; these are: message, reasoning, and calls of "
                    "function, custom and local_shell tools with their outputs.",
                    param=f"{at}.type",
                    code="unsupported_parameter",
                )
    return list(messages)


def _add_message(at: str, item: Json, messages: list[dict[str, Any]]) -> None:
    check.one_of(*_ROLES)(f"{at}.role", item.get("role"))
    content = item.get("content")
    if type(content) is list:
        content = [_read_part(f"{at}.content[{place}]", part) for place, part in enumerate(content)]
        if not content:
            raise check.wrong_value(f"{at}.content", "at least one part", 0)
        if all(part["type"] == "text" for part in content) and len(content) == 1:
            content = content[0]["text"]
    else:
        check.string(f"{at}.content", content)
    if item["role"] == "assistant" and _is_begun(messages) and "content" not in messages[-1]:
        messages[-1]["content"] = content
    else:
        messages.append({"role": item["role"], "content": content})


def _add_call(at: str, item: Json, messages: list[dict[str, Any]]) -> None:
    check.filled_string(f"{at}.call_id", item.get("call_id"))
    check.filled_string(f"{at}.name", item.get("name"))
    check.string(f"{at}.arguments", item.get("arguments"))
    if not _is_begun(messages):
        messages.append({"role": "assistant"})
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    messages[-1].setdefault("content", None)
    messages[-1].setdefault("tool_calls", []).append(call)


def _add_thought(at: str, item: Json, messages: list[dict[str, Any]]) -> None:
    """Keep a thought's words; one that is encrypted has none for the models here."""
    texts = []
    for field in ("summary", "content"):
        parts = item.get(field)
        if parts is None:
            continue
        check.array(f"{at}.{field}", parts)
        for place, part in enumerate(parts):
            check.json_object(f"{at}.{field}[{place}]", part)
            check.string(f"{at}.{field}[{place}].text", part.get("text"))
            texts.append(part["text"])
    if texts:
        messages.append({"role": "assistant", "reasoning_content": "".join(texts)})


def _is_begun(messages: Sequence[Json]) -> bool:
    """Tell whether the last message is an assistant's that may go on."""
    return bool(messages) and messages[-1]["role"] == "assistant"


def _read_output(at: str, item: Json) -> dict[str, Any]:
    check.filled_string(f"{at}.call_id", item.get("call_id"))
    output = item.get("output")
    if type(output) is list:
        output = [_read_part(f"{at}.output[{place}]", part) for place, part in enumerate(output)]
    else:
        check.string(f"{at}.output", output)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": output}


def _read_part(at: str, part: Any) -> Json:
    check.json_object(at, part)
    kind = part.get("type")
    check.string(f"{at}.type", kind)
    match kind:
        case "input_text" | "output_text":
            check.string(f"{at}.text", part.get("text"))
            return {"type": "text", "text": part["text"]}
        case "refusal":
            check.string(f"{at}.refusal", part.get("refusal"))
            return {"type": "refusal", "refusal": part["refusal"]}
        case "input_image":
            check.string(f"{at}.image_url", part.get("image_url"))
            detail = {} if part.get("detail") is None else {"detail": part["detail"]}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file":
            check.string(f"{at}.file_data", part.get("file_data"))
            names = {key: part[key] for key in ("file_data", "filename") if part.get(key) is not None}
            return {"type": "file", "file": names}
        case _:
            raise InvalidRequest(f"Parts of type '{kind[:64]}' are not read here.", param=f"{at}.type")
