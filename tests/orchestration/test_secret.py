"""A secret is never printed."""

from __future__ import annotations

import pickle

import pytest

from orchestration.core import Secret


def test_no_way_of_printing_shows_a_secret() -> None:
    secret = Secret("sk-very-secret")
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        "{0}".format(secret),  # noqa: UP030, UP032  (the other way of formatting is what is tested)
        repr([secret]),
        repr({"k": secret}),
    ]
    assert not any("very" in text for text in shown)
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_a_secret_is_compared_whole() -> None:
    assert Secret("abc").matches("abc")
    assert not Secret("abc").matches("abcd")
