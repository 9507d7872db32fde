from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.openai_compatible import OpenAICompatibleBackend
from orchestration.core import Secret
from tests.backends.openai_compatible.fake_upstream import FakeUpstream

KEY = "sk-very-secret"


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream()
    await upstream.start()
    yield upstream
    await upstream.stop()


@pytest.fixture
async def backend(upstream: FakeUpstream) -> AsyncIterator[OpenAICompatibleBackend]:
    backend = OpenAICompatibleBackend(base_url=upstream.url, upstream_model="there", api_key=Secret(KEY))
    yield backend
    await backend.aclose()
