"""The environment: read here alone, as overrides of the file and as the source of its `${NAME}`s."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any

import yaml

from gateway.refusals import SettingsError

PREFIX = "LAMINA_"
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def process_environment() -> dict[str, str]:
    """Copy this process's environment."""
    return dict(os.environ)


def expand(value: Any, environment: Mapping[str, str], path: str = "") -> Any:
    """Replace every `${NAME}` in the strings of a YAML value; raises `SettingsError` for a name that is not set."""
    if isinstance(value, Mapping):
        return {key: expand(item, environment, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, environment, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _look_up(match.group(1), environment, path), value)
    return value


def override(settings: Any, environment: Mapping[str, str]) -> None:
    """Write every `LAMINA_<SECTION>__<KEY>` into the file's value, in place; a number names a list's element."""
    for name in sorted(environment):
        if name.startswith(PREFIX) and "__" in name:
            _set(settings, name, name.removeprefix(PREFIX).lower().split("__"), environment[name])


def source_of(path: str, environment: Mapping[str, str]) -> str | None:
    """Return the variable that set the setting at this path, where one did."""
    name = PREFIX + path.replace(".", "__").replace("[", "__").replace("]", "").upper()
    return name if "__" in name and name in environment else None


def _look_up(name: str, environment: Mapping[str, str], path: str) -> str:
    value = environment.get(name)
    if value is None:
        close = difflib.get_close_matches(name, environment, n=1, cutoff=0.8)
        hint = f"; did you mean ${{{close[0]}}}?" if close else ": export it, or take it out of the file"
        raise SettingsError(f"{path}: the environment has no {name}{hint}")
    return value


def _set(settings: Any, name: str, keys: list[str], text: str) -> None:
    target = settings
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        last = following is None
        if isinstance(target, list):
            if not key.isdigit() or int(key) >= len(target):
                raise SettingsError(f"{name}: the file has no element {key!r} there (it has {len(target)})")
            index = int(key)
            target[index] = _parse(text) if last else target[index]
            target = target[index]
        elif isinstance(target, dict):
            if last:
                target[key] = _parse(text)
            elif target.get(key) is None:
                target[key] = {}
            target = target[key]
        else:
            raise SettingsError(f"{name}: {'.'.join(keys[: keys.index(key)])} is one value and has no key {key!r}")


def _parse(text: str) -> Any:
    """Read a list, a mapping or null as YAML; leave any other text to the setting's own type."""
    if text.strip().startswith(("[", "{")) or text.strip() in {"null", "~", ""}:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return text
