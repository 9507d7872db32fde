from __future__ import annotations

from pathlib import Path

import pytest

from gateway.layers import LayerSpec, build_stranger, check_order, read_layers
from gateway.refusals import SettingsError
from gateway.settings import parse_settings
from gateway.settings.tree import DEFAULT_LAYERS

STRANGER = '''
from contextlib import aclosing
from dataclasses import replace

class Shout:
    """A stranger's layer: asks in capitals."""

    def __init__(self, suffix="!"):
        self.suffix = suffix

    async def __call__(self, call, next):
        messages = [{**m, "content": m["content"].upper() + self.suffix} for m in call.request.messages]
        async with aclosing(next(replace(call, request=call.request.with_fields(messages=messages)))) as events:
            async for event in events:
                yield event

class NoLayer:
    def __call__(self):
        return None
'''


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Put a stranger's one file into a working folder and name its module."""
    name = f"stranger_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))  # undone after the test, with what the code under test appends
    return name


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (["call_log"], "'router' is missing"),
        ([], "'router' is missing"),
        (["router", "call_log"], "'router' must be the last"),
        (["router", "call_log", "router"], "'router' is there twice"),
        (["limits", "call_log", "router"], "'call_log' must be the first"),
        (["my.module:Layer", "call_log", "router"], "'call_log' must be the first"),
        (["exact_cache", "input_checks", "router"], "'input_checks' must stand before 'exact_cache'"),
        (["semantic_cache", "input_checks", "router"], "'input_checks' must stand before 'semantic_cache'"),
        (["output_checks", "exact_cache", "router"], "'exact_cache' must stand before 'output_checks'"),
        (["output_checks", "semantic_cache", "router"], "'semantic_cache' must stand before 'output_checks'"),
        (["semantic_cache", "exact_cache", "router"], "'exact_cache' must stand before 'semantic_cache'"),
        (["exact_cache", "limits", "router"], "'limits' must stand before 'exact_cache'"),
        (["exact_cach", "router"], "did you mean 'exact_cache'"),
        (["not-a-module:Class", "router"], "not of the form module:Class"),
        ([{"exact_cache": {"ttl": 3}}, "router"], "takes no options here"),
        ([{"a:B": {}, "c:D": {}}, "router"], "one layer an element"),
    ],
)
def test_an_unsafe_order_is_refused_with_the_reason(order: list[str], reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_order(order)

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "order",
    [
        list(DEFAULT_LAYERS),
        ["router"],
        ["call_log", "exact_cache", "router"],
        ["call_log", "input_checks", "limits", "semantic_cache", "router"],
        ["call_log", "a.b:C", "exact_cache", {"d:E": {"x": 1}}, "router"],
    ],
)
def test_layers_can_be_cut_reordered_and_added(order: list[str]) -> None:
    check_order(order)


def test_the_settings_refuse_an_unsafe_order() -> None:
    with pytest.raises(SettingsError, match="router"):
        parse_settings("layers: [call_log]", environment={})


def test_options_of_a_stranger_are_read() -> None:
    assert read_layers([{"a:B": {"x": 1}}, {"c:D": None}]) == [LayerSpec("a:B", {"x": 1}), LayerSpec("c:D")]


def test_a_stranger_is_built_from_one_file_in_the_working_folder(tmp_path: Path, stranger: str) -> None:
    layer = build_stranger(LayerSpec(f"{stranger}:Shout", {"suffix": "?"}), folder=tmp_path)

    assert callable(layer)
    assert vars(layer) == {"suffix": "?"}


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("no_such_module_here:Shout", {}, "cannot import"),
        ("{stranger}:Whisper", {}, "has no 'Whisper'"),
        ("{stranger}:Shout", {"volume": 3}, "volume"),
        ("{stranger}:NoLayer", {}, "no layer"),
    ],
)
def test_a_stranger_that_cannot_be_built_is_refused(
    tmp_path: Path, stranger: str, name: str, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        build_stranger(LayerSpec(name.format(stranger=stranger), options), folder=tmp_path)

    assert reason in str(caught.value)
