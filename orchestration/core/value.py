"""Values that are made by the dozen for every call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """Make a slotted dataclass that nobody may change: the type checker sees to it, the interpreter does not.

    A frozen one sets each field by a call, 0.1 us for each and some 300 fields a call.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
