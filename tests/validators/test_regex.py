"""Patterns of the settings run in time linear in the text, or are refused."""

from __future__ import annotations

import time

import pytest

from tests.validators.looks import rewritten, verdict_of
from validators.check import Outcome
from validators.regex import Regex

EVIL = [r"(a+)+$", r"(a|a)*$", r"(a|aa)+$", r"([a-zA-Z]+)*$", r"(.*a){20}$", r"^(\w+\s?)*$"]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pattern_that_backtracks_elsewhere_is_linear_here(pattern: str) -> None:
    def cpu_s(length: int) -> float:
        text = "a" * length + "!"
        begun = time.process_time()
        for _ in range(3):
            verdict_of("regex", text, patterns=[f"x{pattern}"])
        return time.process_time() - begun

    small, large = min(cpu_s(2_000) for _ in range(3)), min(cpu_s(32_000) for _ in range(3))

    assert large < 16 * small * 4 + 0.1  # backtracking would take more than the age of the universe


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(?=a)b", r"(?<!a)b", "(", r"a*", "(?m)^", r"\b"])
def test_what_is_not_regular_or_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="patterns: "):
        Regex([pattern])


def test_a_refused_pattern_is_quoted_as_it_was_written() -> None:
    with pytest.raises(ValueError, match=r"^patterns: '\(a\)\\1': .*: invalid escape sequence: \\1$"):
        Regex([r"(a)\1"])


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [(r"\bfoo\d{1,4}\b", 7), ("a|bcd", 3), ("a+", None), (r"\pL{3}", None), ("a{900}" * 5, None)],
)
def test_a_pattern_with_a_bound_says_its_longest_match(pattern: str, longest: int | None) -> None:
    assert Regex([pattern]).longest_match == longest


def test_every_match_is_replaced() -> None:
    assert (
        rewritten("regex", "foo1 foo22 food x\u00e9foo3", patterns=[r"\bfoo\d{1,4}\b", "x."])
        == "**** **** food ********"
    )


def test_a_form_can_be_required() -> None:
    assert verdict_of("regex", "yes", must_match="yes|no").outcome is Outcome.PASS
    assert verdict_of("regex", "yes!", must_match="yes|no").outcome is Outcome.BLOCK
    with pytest.raises(ValueError, match="must_match: stands alone"):
        verdict_of("regex", "x", must_match="x", patterns=["x"])
