"""Banned words are found as words, in any case, script and spacing, and their longest match is what they say."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validators.banned_words import BannedWords
from validators.check import Context, Span, Stage
from validators.shadow import normalise

RUSSIAN = "\u0441\u043b\u043e\u0432\u043e"
phrases = st.text(alphabet="ab \u00e9", min_size=1, max_size=6).filter(str.strip)
CONTEXT = Context(Stage.OUTPUT, "choices[0].text")


async def found(words: list[str], text: str, *, whole_words: bool = True) -> list[str]:
    verdict = await BannedWords(words, whole_words=whole_words).check(text, CONTEXT)
    return [text[span.start : span.end] for span in verdict.spans]


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (["bad"], "Bad, BAD! bad.", ["Bad", "BAD", "bad"]),
        (["bad"], "badly abad bad_ 2bad \u00e9bad bad\u00e9", []),
        (["bad"], "bad-bad/bad", ["bad", "bad", "bad"]),
        (["caf\u00e9"], "CAF\u00c9 caf\u00e9s caf\u00e9", ["CAF\u00c9", "caf\u00e9"]),
        ([RUSSIAN], f"{RUSSIAN.upper()}, {RUSSIAN}\u043c", [RUSSIAN.upper()]),
        (["\u0915\u093e\u0932"], "\u0915\u093e\u0932\u093e \u0915\u093e\u0932", ["\u0915\u093e\u0932"]),
        (["bad idea"], "bad idea, bad\n  idea, bad      idea", ["bad idea", "bad\n  idea"]),
        (["bad", "bad idea"], "a bad idea", ["bad idea"]),
        (["bad idea", "idea"], "xbad idea", ["idea"]),
        (["$cash", "a+"], "my$cash and a+b (a+)", ["$cash", "a+", "a+"]),
        ([".*", "[a]"], "anything [A] .*", ["[A]", ".*"]),
        (["\uff42\uff41\uff44"], "bad", ["bad"]),
    ],
)  # fmt: skip
async def test_words_are_found_where_they_are_words(words: list[str], text: str, expected: list[str]) -> None:
    assert await found(words, text) == expected


async def test_without_whole_words_they_are_found_anywhere() -> None:
    assert await found(["bad"], "abadb Badly", whole_words=False) == ["bad", "Bad"]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.text(alphabet="ab \u00e9", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=4),
    st.text(alphabet="ab \u00e9\n"),
)
async def test_no_match_is_longer_than_the_longest_match(words: list[str], text: str) -> None:
    check = BannedWords(words, replacement="#")

    verdict = await check.check(normalise(text).text, CONTEXT)

    assert all(span.end - span.start <= (check.longest_match or 0) for span in verdict.spans)
    assert [*verdict.spans] == sorted(verdict.spans, key=lambda span: span.start)


async def test_a_search_from_the_middle_looks_back_one_character() -> None:
    check = BannedWords(["bad"])

    assert (await check.check("xbad", Context(Stage.OUTPUT, "", start=1))).spans == ()
    assert (await check.check(" bad", Context(Stage.OUTPUT, "", start=1))).spans == (Span(1, 4, "****"),)


async def test_a_thousand_words_are_one_pass() -> None:
    words = [f"word{number}" for number in range(1000)]
    text = "nothing to find here " * 5000 + "word999"

    begun = time.thread_time()
    assert await found(words, text) == ["word999"]

    assert time.thread_time() - begun < 5


@pytest.mark.parametrize("text", ["a" * 100_000, "ab" * 50_000, "a " * 50_000])
async def test_a_text_full_of_near_matches_is_read_in_linear_time(text: str) -> None:
    begun = time.thread_time()
    await found(["a", "aab", "ab"], text)

    assert time.thread_time() - begun < 5  # measured: 0.1 s; a quadratic search takes minutes
