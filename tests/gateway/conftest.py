from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.backends.remote.fake_upstream import FakeUpstream


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream()
    await upstream.start()
    yield upstream
    await upstream.stop()
