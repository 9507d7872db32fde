"""Tools of the responses API that run at the client and are no functions: told to models as functions, and back.

A custom tool takes free text: the model is shown a function with one text. The local shell takes a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.dialects import fields as check
from orchestration.core.errors import InvalidRequest

Json = Mapping[str, Any]
SHELL = "local_shell"
_TEXT = {"type": "string"}
_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {**_TEXT, "description": "The tool's whole input, as it is."}},
    "required": ["input"],
    "additionalProperties": False,
}
_COMMAND = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": _TEXT, "description": "The program and its arguments."},
        "working_directory": _TEXT,
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}


def read_tool(name: str, tool: Json) -> Json:
    """Tell a tool as a function; raises `InvalidRequest` that names the place for one that would run at a provider."""
    match tool["type"]:
        case "custom":
            check.filled_string(f"{name}.name", tool.get("name"))
            description = tool.get("description") if tool.get("description") is not None else ""
            check.string(f"{name}.description", description)
            words = [description, _format_words(f"{name}.format", tool.get("format"))]
            return _function(tool["name"], " ".join(filter(None, words)), _FREE_TEXT)
        case "local_shell":
            return _function(SHELL, "Run a command on the user's machine and read what it writes.", _COMMAND)
        case kind:
            raise InvalidRequest(
                f"Tools of type '{kind[:64]}' do not run here; only 'function', 'custom' and 'local_shell' do.",
                param=f"{name}.type",
                code="unsupported_parameter",
            )


def kinds_of(tools: Any) -> Mapping[str, str]:
    """Return, by the function's name, which tools of a request are no functions to its client."""
    known = {"custom": "custom_tool_call", "local_shell": "local_shell_call"}
    return {
        tool.get("name") or SHELL: known[tool["type"]]
        for tool in tools or ()
        if isinstance(tool, dict) and tool.get("type") in known
    }


def call_of(at: str, item: Json) -> Json:
    """Tell a call of such a tool, as the client sends it back, as a `function_call` item."""
    if item["type"] == "custom_tool_call":
        check.string(f"{at}.input", item.get("input"))
        return {**item, "arguments": orjson.dumps({"input": item["input"]}).decode()}
    check.json_object(f"{at}.action", item.get("action"))
    action = {name: value for name, value in item["action"].items() if name not in ("type", "env") and value}
    return {**item, "name": SHELL, "arguments": orjson.dumps(action).decode()}


def begun(kind: str, block: Json) -> dict[str, Any]:
    """Return the item of a call that begins."""
    if kind == "custom_tool_call":
        return {"type": kind, "call_id": block["id"], "name": block["name"], "input": ""}
    return {"type": kind, "call_id": block["id"], "action": {"type": "exec", "command": [], "env": {}}}


def ended(kind: str, arguments: str) -> dict[str, Any]:
    """Return what a whole call's arguments say in its item; arguments that are no JSON are passed on as they are."""
    try:
        read = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        read = None
    said = read if isinstance(read, dict) else {}
    if kind == "custom_tool_call":
        text = said.get("input")
        return {"input": text if isinstance(text, str) else arguments}
    command = said.get("command")
    is_list = isinstance(command, list) and all(isinstance(word, str) for word in command)
    words = command if is_list else [command if isinstance(command, str) else arguments]
    more = {name: said[name] for name in ("timeout_ms", "working_directory") if said.get(name) is not None}
    return {"action": {"type": "exec", "command": words, "env": {}, **more}}


def _function(name: str, description: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _format_words(name: str, format: Any) -> str:
    """Put a grammar into words: no model behind a chat can be held to it."""
    if format is None:
        return ""
    check.json_object(name, format)
    check.string(f"{name}.type", format.get("type"))
    if format["type"] != "grammar":
        return ""
    for field in ("syntax", "definition"):
        check.string(f"{name}.{field}", format.get(field))
    return f"The input follows this {format['syntax']} grammar:\n{format['definition']}"
