"""Read the settings: the file, the environment's overrides, and every reason to refuse them."""

from __future__ import annotations

import difflib
import hashlib
import logging
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.layers import check_order
from gateway.refusals import SettingsError
from gateway.settings.environment import expand, override, source_of
from gateway.settings.litellm import translate
from gateway.settings.rules import check_rules, with_addresses, with_embedder, with_master_key
from gateway.settings.tree import Settings
from gateway.settings.unbuilt import check_built

DEFAULT_FILE = Path("lamina.yaml")
logger = logging.getLogger(__name__)


def load_settings(config: Path | None, *, environment: Mapping[str, str]) -> Settings:
    """Read `config`, or `lamina.yaml` where it exists, or nothing; raises `SettingsError` in one line."""
    try:
        return parse_settings(read_config(config), environment=environment)
    except SettingsError as exc:
        path = config or DEFAULT_FILE
        raise SettingsError(f"{path}: {exc}" if path.exists() else str(exc)) from exc


def read_config(config: Path | None) -> str:
    """Return the file's text, empty where none was named and there is no `lamina.yaml`."""
    path = config or DEFAULT_FILE
    if config is None and not path.exists():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"not UTF-8 text: {exc.reason} at byte {exc.start}") from exc


def mark_of(text: str) -> str:
    """Name a file's text, so that two processes can tell whether they mean the same."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_settings(text: str, *, environment: Mapping[str, str]) -> Settings:
    """Turn YAML and the environment into checked settings; raises `SettingsError` in one line."""
    try:
        return _parse(text, environment)
    except SettingsError as exc:
        name = source_of(str(exc).partition(":")[0], environment)
        raise SettingsError(f"{exc} (set by {name})") if name else exc from None


def _parse(text: str, environment: Mapping[str, str]) -> Settings:
    raw, remarks = translate(_read_yaml(text))
    for remark in remarks:
        logger.warning("settings.left_aside %s", remark)
    override(raw, environment)
    sections = {name: value for name, value in expand(raw, environment).items() if value is not None}
    try:
        settings = Settings.model_validate(sections)
    except ValidationError as exc:
        # An unknown key is the likelier cause where a known one is missing beside it.
        errors = sorted(exc.errors(), key=lambda error: error["type"] != "extra_forbidden")
        raise SettingsError(_describe(errors[0], sections)) from exc
    check_built(settings)
    settings = with_addresses(with_master_key(settings))
    check_rules(settings)
    check_order(settings.layers)
    return with_embedder(settings)


def _read_yaml(text: str) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise SettingsError("not YAML: " + " ".join(str(exc).split())) from exc
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise SettingsError(f"the file must hold sections ({', '.join(Settings.model_fields)})")
    return raw


def _describe(error: ErrorDetails, sections: Mapping[str, Any]) -> str:
    """Say in one line where the first error is, what is wrong and what would be right."""
    path = _path_of(error["loc"])
    if error["type"] == "extra_forbidden":
        return _describe_unknown(error["loc"])
    message = error["msg"][0].lower() + error["msg"][1:]
    given = _given_at(error["loc"], sections)
    return f"{path}: {message}" + (f", not {given!r}" if given is not None else "")


def _describe_unknown(loc: tuple[int | str, ...]) -> str:
    *parents, key = loc
    known = _keys_at(parents)
    close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
    return f"{_path_of(loc)}: unknown key; {hint}"


def _keys_at(parents: list[int | str]) -> list[str]:
    """List the keys of the section at this path, following the tree's annotations."""
    section: type[BaseModel] = Settings
    for name in parents:
        if isinstance(name, str) and name in section.model_fields:
            section = _section_in(section.model_fields[name].annotation) or section
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for part in typing.get_args(annotation) if (found := _section_in(part))), None)


def _path_of(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _given_at(loc: tuple[int | str, ...], value: Any) -> object | None:
    """Return the wrong scalar itself, unless it is, or may be, a secret."""
    for part in loc:
        if isinstance(value, Mapping):
            value = value.get(part)
        else:
            value = value[part] if isinstance(value, list) and isinstance(part, int) else None
    is_secret = loc[-1] in {"api_key", "master", "url"}
    return value if isinstance(value, str | int | float) and not is_secret else None
