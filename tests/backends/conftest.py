"""What the tests of the backends share: the real model's text side, read once, and a scripted engine and upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.local.backend import LocalBackend
from backends.local.link import EngineLink
from backends.local.model import LocalModel
from backends.local.text import LocalText
from tests.backends.fake_engine import FakeEngine
from tests.backends.remote.fake_upstream import FakeUpstream


@pytest.fixture(scope="session")
def text(language_model: Path) -> LocalText:
    return LocalText.load(language_model)


@pytest.fixture
async def engine(short_folder: Path) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(short_folder / "fake-engine.sock")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def link(engine: FakeEngine) -> AsyncIterator[EngineLink]:
    link = EngineLink(engine.address)
    yield link
    await link.aclose()


@pytest.fixture
def backend(link: EngineLink, text: LocalText, language_model: Path) -> LocalBackend:
    return LocalBackend(LocalModel(link, path=language_model, load=lambda path: text))


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream()
    await upstream.start()
    yield upstream
    await upstream.stop()
