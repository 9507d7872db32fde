"""The list `layers:`: which names there are, which orders are safe, and how a stranger's class is found."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gateway.refusals import SettingsError
from orchestration.core import Layer

NAMES = ("call_log", "limits", "input_checks", "exact_cache", "semantic_cache", "output_checks", "router")

_CACHES = ("exact_cache", "semantic_cache")
_OUTSIDE = (
    *(
        ("input_checks", cache, "or a cached answer would be given to a request that nobody checked")
        for cache in _CACHES
    ),
    *(("limits", cache, "or answers from the cache would not be counted") for cache in _CACHES),
    *((cache, "output_checks", "or answers would be stored that nobody checked") for cache in _CACHES),
    ("exact_cache", "semantic_cache", "or a similar question would be answered before the same one was looked for"),
)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One element of the list: a name of ours, or a stranger's `module:Class` with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_stranger(self) -> bool:
        """Tell whether the layer's code is not ours."""
        return ":" in self.name


def read_layers(entries: Sequence[str | Mapping[str, Mapping[str, Any] | None]]) -> list[LayerSpec]:
    """Read the list's elements; raises `SettingsError` for what is neither a name nor `module:Class`."""
    return [_read(entry, f"layers[{index}]") for index, entry in enumerate(entries)]


def check_order(entries: Sequence[str | Mapping[str, Mapping[str, Any] | None]]) -> None:
    """Raise `SettingsError` with the reason where the order is not safe."""
    names = [spec.name for spec in read_layers(entries)]
    places = {name: index for index, name in reversed(list(enumerate(names)))}
    for index, name in enumerate(names):
        if places[name] != index:
            raise SettingsError(f"layers[{index}]: '{name}' is there twice")
    if "router" not in places:
        raise SettingsError("layers: 'router' is missing; nothing would answer, so it must be the last one")
    if names[-1] != "router":
        raise SettingsError(f"layers: 'router' must be the last one; '{names[-1]}' after it would never be asked")
    if places.get("call_log", 0) != 0:
        raise SettingsError(
            f"layers: 'call_log' must be the first one, or calls that end in '{names[0]}' are not logged"
        )
    for outer, inner, reason in _OUTSIDE:
        if outer in places and inner in places and places[outer] > places[inner]:
            raise SettingsError(f"layers: '{outer}' must stand before '{inner}', {reason}")


def build_stranger(spec: LayerSpec, *, folder: Path) -> Layer:
    """Construct a stranger's layer from a module on the path or in `folder`.

    The folder goes to the end of the path, so that no file in it can stand in for a module of ours.
    Raises `SettingsError` where the module, the class or its options are wrong.
    """
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module_name, _, class_name = spec.name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ImportError as exc:
        raise SettingsError(f"layers: cannot import '{spec.name}': {exc}") from exc
    except AttributeError as exc:
        raise SettingsError(f"layers: module '{module_name}' has no '{class_name}'") from exc
    try:
        layer = found(**spec.options)
        inspect.signature(layer).bind(None, None)
    except TypeError as exc:
        raise SettingsError(f"layers: '{spec.name}' is no layer: {exc}; it is called with (call, next)") from exc
    return cast("Layer", layer)  # its call was seen to take what a layer takes; more cannot be known


def _read(entry: str | Mapping[str, Mapping[str, Any] | None], path: str) -> LayerSpec:
    if isinstance(entry, str):
        return _checked(LayerSpec(entry), path)
    if len(entry) != 1:
        raise SettingsError(f"{path}: one layer an element, as in 'exact_cache' or {{module:Class: {{option: value}}}}")
    ((name, options),) = entry.items()
    return _checked(LayerSpec(name, options or {}), path)


def _checked(spec: LayerSpec, path: str) -> LayerSpec:
    if spec.is_stranger:
        module, _, name = spec.name.partition(":")
        if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise SettingsError(f"{path}: '{spec.name}' is not of the form module:Class")
        return spec
    if spec.name not in NAMES:
        close = difflib.get_close_matches(spec.name, NAMES, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(NAMES)}, or module:Class"
        raise SettingsError(f"{path}: unknown layer '{spec.name}'; {hint}")
    if spec.options:
        raise SettingsError(f"{path}: '{spec.name}' takes no options here; they have a section of their own")
    return spec
