"""The tables of settings, from the tree that the file is checked against."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.reference.meanings import MEANINGS
from gateway.reference.tables import table
from gateway.settings import Settings
from orchestration.core import Secret

_NAMES: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Secret: "secret text",
    Path: "path",
    type(None): "null",
    Any: "anything",
}
_SIGNS: Mapping[type[Any], str] = {Ge: "at least", Gt: "over", Le: "at most", Lt: "under"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file, and what its section says of itself."""

    path: str
    type: str
    default: str
    section: str


def settings_tables() -> str:
    """Write one table a section: every key, its type, its default and what it means."""
    parts = []
    for section in Settings.model_fields:
        keys = [key for key in setting_keys() if key.path.partition(".")[0].partition("[")[0] == section]
        rows = [[f"`{key.path}`", key.type, key.default, MEANINGS.get(key.path, key.section)] for key in keys]
        parts.append(f"### `{section}`\n\n{table(['key', 'type', 'default', 'meaning'], rows)}")
    return "\n\n".join(parts)


def setting_keys() -> Iterator[Key]:
    """Give every key of the file, sections' keys by their path: `models[].backends[].timeout_s.total`."""
    yield from _keys_of(Settings, "")


def _keys_of(section: type[BaseModel], prefix: str) -> Iterator[Key]:
    words = " ".join((section.__doc__ or "").split())
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        inner, step = _section_in(field.annotation)
        if inner is None:
            yield Key(path, _type_of(field), _default_of(field), words)
            continue
        if step:
            yield Key(path, "mapping by name" if step == ".NAME" else "list", _default_of(field), words)
        yield from _keys_of(inner, f"{path}{step}.")


def _section_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Find the section that a key holds, and how its keys are reached: by a place, a name, or directly."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return (annotation, "") if issubclass(annotation, BaseModel) else (None, "")
    step = {tuple: "[]", list: "[]", dict: ".NAME"}.get(typing.get_origin(annotation) or annotation, "")
    for part in typing.get_args(annotation):
        found, _ = _section_in(part)
        if found is not None:
            return found, step
    return None, ""


def _type_of(field: FieldInfo) -> str:
    bounds = [
        f"{_SIGNS[type(one)]} {value:g}"
        for one in field.metadata
        if type(one) in _SIGNS and isinstance(value := next(iter(vars_of(one))), int | float)
    ]
    return ", ".join([_name_of(field.annotation), *bounds])


def vars_of(bound: Any) -> list[Any]:
    """Return the values of a bound (`Ge(ge=1)` has one)."""
    return [getattr(bound, name) for name in type(bound).__dataclass_fields__]


def _name_of(annotation: Any) -> str:
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is typing.Annotated:
        return _name_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_name_of(part) for part in arguments))
    if origin in (tuple, list):
        return f"list of {_name_of(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    return "value"


def _default_of(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "needed"
    return f"`{_shown(value)}`"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case tuple() | list():
            return "[" + ", ".join(_shown(one) for one in value) + "]"
        case BaseModel():
            said = {name: one for name, one in value.model_dump(exclude_defaults=True, mode="python").items() if one}
            return _shown(said)
        case dict():
            return "{" + ", ".join(f"{name}: {_shown(one)}" for name, one in value.items()) + "}"
        case _:
            return str(value)
