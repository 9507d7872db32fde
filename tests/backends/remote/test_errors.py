from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from backends.remote.errors import read_retry_after


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers) == seconds


def test_the_wait_is_read_from_a_date() -> None:
    wait_s = read_retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)})

    assert wait_s is not None
    assert 10 < wait_s <= 100
