"""Every text in a request: where it stands, and the request with other texts in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestration.core import Request

Path = tuple[str | int, ...]

FIELDS = (
    "messages", "prompt", "suffix", "input", "query", "documents", "instructions", "prediction", "tools", "functions",
    "response_format", "chat_template_kwargs",
)  # fmt: skip
"""The fields whose texts the model reads."""

NOT_TEXT = frozenset(
    {"role", "type", "id", "name", "tool_call_id", "image_url", "input_audio", "file", "cache_control", "required"}
)
"""Keys under which there are names and media, at any depth; in a schema, a property may be called so."""

SCHEMAS = frozenset({"tools", "functions", "response_format"})
"""Fields that hold JSON schemas, and no media."""

JSON_TEXTS = frozenset({"arguments"})
"""Keys whose text is itself JSON."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the request; `is_json` says that it is JSON written out, as a tool call's arguments are."""

    path: Path
    text: str
    is_json: bool

    @property
    def param(self) -> str:
        """Name the place as an error's `param` does: `messages[2].content`."""
        first, *rest = self.path
        return str(first) + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in rest)


def texts_of(request: Request) -> list[Text]:
    """List every text that the model would read: all roles, content parts, tool arguments and tool results."""
    fields = request.fields
    return [text for name in FIELDS if name in fields for text in _walk((name,), fields[name])]


def token_ids_of(request: Request) -> str | None:
    """Name the field that holds token ids, which no check can read; None where there is none."""
    for name in ("prompt", "input"):
        if _holds_ids(request.fields.get(name)):
            return name
    return None


def with_texts(request: Request, changes: Mapping[Path, str]) -> Request:
    """Return the request with some texts replaced; what it shares with the old one is not changed."""
    if not changes:
        return request
    return request.with_fields(**_replaced(request.fields, list(changes.items()), only=True))


def _walk(path: Path, value: Any) -> Iterator[Text]:
    if isinstance(value, str):
        if value:
            yield Text(path, value, is_json=path[-1] in JSON_TEXTS)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in NOT_TEXT or (path[0] in SCHEMAS and isinstance(inner, dict)):
                yield from _walk((*path, key), inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            if not isinstance(inner, int):
                yield from _walk((*path, index), inner)


def _holds_ids(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return any(isinstance(inner, int) or _holds_ids(inner) for inner in value)


def _replaced(value: Any, changes: Sequence[tuple[Path, str]], *, only: bool = False) -> Any:
    """Copy what holds a change, once whatever the number of changes; `only` what was changed, of an object."""
    if not changes[0][0]:
        return changes[0][1]
    below: dict[str | int, list[tuple[Path, str]]] = {}
    for path, text in changes:
        below.setdefault(path[0], []).append((path[1:], text))
    inner = {step: _replaced(value[step], found) for step, found in below.items()}
    if isinstance(value, Mapping):
        return inner if only else {**value, **inner}
    copied = list(value)
    for step, item in inner.items():
        copied[int(step)] = item
    return copied
