from __future__ import annotations

from pathlib import Path

import pytest

from backends.local.backend import LocalBackend
from backends.registry import KINDS, BackendFactory, BackendOptions
from orchestration.core import Kind, Secret
from tests.backends.calls import ask, chat_call
from tests.backends.fake_engine import FakeEngine, step


def engine_options(engine: FakeEngine, model_path: Path) -> BackendOptions:
    return BackendOptions(type="engine", model="m", engine_address=engine.address, model_path=model_path)


async def test_backends_of_one_engine_share_its_connection(engine: FakeEngine, language_model: Path) -> None:
    engine.on_submit = lambda message: [step(message["id"], [2], finish="stop")]
    factory = BackendFactory()
    first, second = (factory.create(engine_options(engine, language_model)) for _ in range(2))

    await ask(first, chat_call())
    await ask(second, chat_call())

    assert isinstance(first, LocalBackend)
    assert engine.num_connections == 1
    assert await factory.engine_stats() == {"running": 3.0, "kv_usage": 0.5}
    await factory.aclose()
    await engine.next_message("gone")


async def test_engine_stats_say_when_the_engine_is_away_and_when_there_is_none(
    engine: FakeEngine, language_model: Path
) -> None:
    factory = BackendFactory()
    assert await factory.engine_stats() is None

    factory.create(engine_options(engine, language_model))
    await engine.stop()

    with pytest.raises(OSError, match="engine"):
        await factory.engine_stats()


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="'m': no backend type 'magic'; these are known: engine, echo, anthropic, openai_compatible"
    ):
        BackendFactory().create(BackendOptions(type="magic", model="m"))


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (BackendOptions(type="engine", model="m"), "engine_address"),
        (BackendOptions(type="openai_compatible", model="m"), "base_url"),
        (BackendOptions(type="anthropic", model="m"), "base_url"),
        (BackendOptions(type="openai_compatible", model="m", base_url="ftp://x"), "http"),
        (BackendOptions(type="engine", model="m", engine_address="x", model_path=Path("x")), "unix:///path"),
    ],
)
def test_a_missing_or_wrong_option_is_named(options: BackendOptions, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        BackendFactory().create(options)


async def test_each_type_says_its_kinds_and_its_name() -> None:
    factory = BackendFactory()
    echo = factory.create(BackendOptions(type="echo", model="m"))
    remote = factory.create(
        BackendOptions(type="openai_compatible", model="m", base_url="http://h:8/v1", api_key=Secret("k"))
    )

    assert (echo.name, remote.name) == ("echo", "openai_compatible/h:8")
    assert KINDS["engine"] == KINDS["echo"] == {Kind.CHAT, Kind.COMPLETION}
    assert Kind.EMBEDDING in KINDS["openai_compatible"]
    await factory.aclose()
