from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.openai_compatible import build_openai_compatible
from backends.remote import RemoteBackend
from orchestration.core import Secret
from tests.backends.remote.fake_upstream import FakeUpstream

KEY = "sk-very-secret"


@pytest.fixture
async def backend(upstream: FakeUpstream) -> AsyncIterator[RemoteBackend]:
    backend = build_openai_compatible(base_url=upstream.url, upstream_model="there", api_key=Secret(KEY))
    yield backend
    await backend.aclose()
