"""No text makes a check slow: eight times as much of it takes about eight times as long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestration.core import Request
from tests.validators.looks import verdict_of
from tests.validators.scripts import make_call
from validators.registry import OWN

OPTIONS: dict[str, dict[str, Any]] = {
    "banned_words": {"words": ["aaaaab", "a b"]},
    "competitors": {"names": ["aaaaaaab"]},
    "grounding": {},
    "json": {},
    "json_schema": {"schema": {"type": "object"}},
    "language": {"allow": ["en"]},
    "pii": {},
    "prompt_injection": {},
    "regex": {"patterns": ["(a+)+b", "(a|a)*b"]},
    "secrets": {},
    "sql": {},
    "topics": {"topics": {"t": ["aaab", "ab"]}},
    "urls": {"deny": ["a.b"]},
}
TEXTS = [
    "a", "1", "a ", "1 ", "a.", "@", "a@", "http://", "a:", "/*", "'", "[", "{", "%41", "=", "4111 ", "1-", "0x",
    "ab ab ", "ignore ", "you are ", "A", "AKIA", "sk-", "-----BEGIN ", "\u4f60", "\u200ba", "e\u0301", ". A", "\\",
    "1a", "::", "<", "+1 ",
]  # fmt: skip
SMALL = 3_000
TIMES = 8


def cpu_s(name: str, text: str, request: Request) -> float:
    begun = time.process_time()
    verdict_of(name, text, request=request, **OPTIONS[name])
    return time.process_time() - begun


@pytest.mark.parametrize("name", OPTIONS)
def test_time_grows_with_the_text_and_no_faster(name: str) -> None:
    request = make_call(messages=[{"role": "tool", "content": "some context"}]).request

    for piece in TEXTS:
        small, large = piece * (SMALL // len(piece)), piece * (SMALL * TIMES // len(piece))
        least_s = min(cpu_s(name, small, request) for _ in range(2))
        # A text that takes the square of its length would take 64 times as long; the rest is for a busy machine.
        assert cpu_s(name, large, request) < 4 * TIMES * least_s + 0.25, piece


def test_every_check_that_reads_texts_is_here() -> None:
    assert set(OWN) - set(OPTIONS) == {"distribution", "length"}
