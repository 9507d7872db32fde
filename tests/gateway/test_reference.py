from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.app import DIALECTS
from gateway.reference.endpoints import document
from gateway.reference.errors import error_classes
from gateway.reference.meanings import MEANINGS
from gateway.reference.page import PAGE, PARTS, rewritten
from gateway.reference.settings import setting_keys

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
SOURCES = ("gateway", "backends", "cache", "validators", "logging_layer", "orchestration")
HEADER = re.compile(r'b"((?:x|retry|anthropic|cache|request)-[a-z-]+|age|allow)"')
CODE = re.compile(r'code="([a-z_]+)"')
INSIDE = frozenset({"unfinished"})
"""Codes of records alone."""


def test_the_page_is_what_the_code_says() -> None:
    assert rewritten(TEXT) == TEXT, "the page is not the code's: run `make docs`"


@pytest.mark.parametrize("part", PARTS)
def test_a_page_without_a_mark_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=part):
        rewritten(TEXT.replace(f"<!-- {part} -->", ""))


def test_every_setting_is_on_the_page() -> None:
    missing = [key.path for key in setting_keys() if f"`{key.path}`" not in TEXT]

    assert not missing
    assert set(MEANINGS) <= {key.path for key in setting_keys()}


def test_every_endpoint_is_on_the_page() -> None:
    paths = {*DIALECTS, *document()["paths"]}

    assert [path for path in sorted(paths) if f"`{path}`" not in TEXT] == []


def test_every_code_of_an_error_is_on_the_page() -> None:
    codes = {kind.code for kind in error_classes() if kind.code} | _found(CODE)

    assert sorted(code for code in codes - INSIDE if f"`{code}`" not in TEXT) == []


def test_every_header_is_on_the_page() -> None:
    headers = {name for name in _found(HEADER, folders=("gateway",)) if not name.endswith("-")}

    assert len(headers) > 15
    assert sorted(name for name in headers if f"`{name}`" not in TEXT) == []


def _found(pattern: re.Pattern[str], folders: tuple[str, ...] = SOURCES) -> set[str]:
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
