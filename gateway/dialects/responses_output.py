"""The output items of a response, and the events of a stream that tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.dialects import responses_tools
from gateway.dialects.blocks import Closed, Grown, Opened, Step

Told = tuple[str, Mapping[str, Any]]
"""An event's name and its fields."""
NO_TOOLS: Mapping[str, str] = {}

# A block's kind: the event's middle name, the part's type, and the part's field.
_SPOKEN = {
    "text": ("output_text", "output_text", "text"),
    "refusal": ("refusal", "refusal", "refusal"),
    "thinking": ("reasoning_text", "reasoning_text", "text"),
}
_CALLS = ("tool_use", "custom_tool_call", "local_shell_call")
_GROWING = ("text", "refusal", "thinking", "partial_json")


class Output:
    """Collect the items, one per block; blocks that the format does not know are left out.

    `tools` says which functions are no functions to the client, and what their calls are called.
    """

    def __init__(self, call_id: str, *, tools: Mapping[str, str] = NO_TOOLS) -> None:
        self._tools = tools
        self.items: list[dict[str, Any]] = []
        self._call_id = call_id
        self._kind = ""
        self._pieces: list[str] = []

    def write(self, steps: Iterable[Step], *, is_cut: bool = False) -> list[Told]:
        """Take steps and return their events; `is_cut` says that what ends here was not complete."""
        told: list[Told] = []
        for step in steps:
            match step:
                case Opened():
                    told += self._open(step.block)
                case Grown():
                    told += self._grow(step.delta)
                case Closed():
                    told += self._close("incomplete" if is_cut else "completed")
        return told

    def _open(self, block: Mapping[str, Any]) -> list[Told]:
        self._kind, self._pieces = str(block["type"]), []
        number = len(self.items)
        match self._kind:
            case "text" | "refusal":
                item = {"id": f"msg_{self._call_id}_{number}", "type": "message", "role": "assistant", "content": []}
            case "thinking":
                item = {"id": f"rs_{self._call_id}_{number}", "type": "reasoning", "summary": [], "content": []}
            case "tool_use" if block["name"] in self._tools:
                self._kind = self._tools[block["name"]]
                item = {"id": f"ct_{self._call_id}_{number}", **responses_tools.begun(self._kind, block)}
            case "tool_use":
                item = {"id": f"fc_{self._call_id}_{number}", "type": "function_call", "arguments": ""}
                item |= {"call_id": block["id"], "name": block["name"]}
            case _:
                return []
        self.items.append({**item, "status": "in_progress"})
        added: list[Told] = [("response.output_item.added", {"output_index": number, "item": {**self.items[-1]}})]
        if self._kind in _SPOKEN:
            added.append(("response.content_part.added", {**self._place(), "part": self._part("")}))
        return added

    def _grow(self, delta: Mapping[str, Any]) -> list[Told]:
        piece = next((delta[name] for name in _GROWING if name in delta), None)
        if piece is None:
            return []  # a signature, a citation
        self._pieces.append(piece)
        if self._kind in _SPOKEN:
            name = _SPOKEN[self._kind][0]
            return [(f"response.{name}.delta", {**self._place(), "delta": piece, **self._logprobs()})]
        if self._kind != "tool_use":
            return []  # what is JSON here is none to the client, and is told once it is whole
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return [("response.function_call_arguments.delta", {**place, "delta": piece})]

    def _close(self, status: str) -> list[Told]:
        if self._kind not in _SPOKEN and self._kind not in _CALLS:
            return []
        item = self.items[-1]
        item["status"] = status
        whole = "".join(self._pieces)
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        if self._kind in _SPOKEN:
            name, _, field = _SPOKEN[self._kind]
            item["content"] = [self._part(whole)]
            told: list[Told] = [
                (f"response.{name}.done", {**self._place(), field: whole, **self._logprobs()}),
                ("response.content_part.done", {**self._place(), "part": self._part(whole)}),
            ]
        elif self._kind != "tool_use":
            item |= responses_tools.ended(self._kind, whole)
            told = _input_events(place, item) if self._kind == "custom_tool_call" else []
        else:
            item["arguments"] = whole
            arguments = {**place, "name": item["name"], "arguments": whole}
            told = [("response.function_call_arguments.done", arguments)]
        return [*told, ("response.output_item.done", {"output_index": len(self.items) - 1, "item": {**item}})]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        _, kind, field = _SPOKEN[self._kind]
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if self._kind == "text" else {}
        return {"type": kind, field: text, **more}

    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": []} if self._kind == "text" else {}


def _input_events(place: Mapping[str, Any], item: Mapping[str, Any]) -> list[Told]:
    name = "response.custom_tool_call_input"
    return [(f"{name}.delta", {**place, "delta": item["input"]}), (f"{name}.done", {**place, "input": item["input"]})]
