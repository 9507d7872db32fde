"""Topics and competitors are found in the forms in which people write them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validators.looks import rewritten, verdict_of

TOPICS = {
    "politics": ["election", "ballot box", "lobby", "\u9009\u4e3e"],
    "crime": ["rob", "steal", "forge", "\u8d4c\u535a"],
}


@pytest.mark.parametrize(
    "word",
    ["election", "Elections", "election's", "BALLOT BOX", "ballot-boxes", "lobbied", "lobbying", "robbed", "robber",
     "steals", "forged", "forging", "lob\u200bby", "\uff4c\uff4f\uff42\uff42\uff59"],
)  # fmt: skip
def test_a_word_is_found_in_its_forms(word: str) -> None:
    assert rewritten("topics", f"so {word}, then", topics=TOPICS) == "so ****, then"


@pytest.mark.parametrize("word", ["selection", "Robert", "lobbyist", "robust", "preelection", "ballot of boxes"])
def test_other_words_are_let_through(word: str) -> None:
    assert rewritten("topics", word, topics=TOPICS) == word


def test_scripts_without_blanks_are_searched_within() -> None:
    assert rewritten("topics", "\u7f51\u7edc\u8d4c\u535a\u7f51\u7ad9", topics=TOPICS) == "\u7f51\u7edc****\u7f51\u7ad9"


def test_the_reason_names_the_topics_alone() -> None:
    assert verdict_of("topics", "a robber at elections", topics=TOPICS).reason == (
        "it is about a banned topic (crime, politics)"
    )


@pytest.mark.parametrize("name", ["Acme", "A C M E", "a.c.m.e", "4cme's", "ac-me", "ACME", "Global Dyn", "GlobalDyn"])
def test_a_competitor_is_found_in_disguise(name: str) -> None:
    assert rewritten("competitors", f"try {name}!", names=["Acme", "Global Dyn"]) == "try ****!"


@pytest.mark.parametrize("name", ["acmeology", "Pacme", "an acne", "global dynasty"])
def test_longer_words_are_no_competitors(name: str) -> None:
    assert rewritten("competitors", name, names=["Acme", "Global Dyn"]) == name


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("topics", {}, "topics: must map a topic's name"),
        ("topics", {"topics": {"a": []}}, "a: must be a list of texts"),
        ("topics", {"topics": {"a": ["x"]}, "replacement": "x"}, "replacement: must not hold a banned word"),
        ("competitors", {"names": [" "]}, "names: must be a list of texts, none of them empty"),
    ],
)
def test_a_wrong_option_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verdict_of(name, "x", **options)
