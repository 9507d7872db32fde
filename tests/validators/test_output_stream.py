"""The promise of the hold-back: the same answer for every chunking, and nothing forbidden ever on the wire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.core import Delta, Event, Finish, Part, Start
from orchestration.core.errors import Blocked
from tests.validators.scripts import Scripted, output, run_to_error, said, tool_piece
from validators.patterns import in_word
from validators.shadow import normalise

WORDS = ["ab", "abc", "b a", "caf\u00e9", "ffi", "cab"]
MASK = "#"
ALPHABET = [
    "a",
    "b",
    "c",
    " ",
    "A",
    "\u200b",
    "\u0301",
    "e",
    "\u00e9",
    "f",
    "i",
    "\ufb03",
    "\uff41",
    ".",
    "\u202e",
    "\U0001f600",
]
texts = st.lists(st.sampled_from(ALPHABET), max_size=40).map("".join)
keys = st.sampled_from([(0, Part.TEXT), (0, Part.REASONING), (1, Part.TEXT), (1, Part.TOOL_CALL), (0, Part.REFUSAL)])
word_lists = st.sampled_from([WORDS, *([word] for word in WORDS)])
runs = st.lists(st.tuples(keys, texts), max_size=6)


def free(*, on_fail: str = "rewrite", whole_words: bool = False, **more: object) -> dict[str, object]:
    options = {"words": WORDS, "whole_words": whole_words, "replacement": MASK, **more}
    return {"check": "banned_words", "on_fail": on_fail, **options}


def delta(key: tuple[int, Part], text: str) -> Delta:
    choice, part = key
    if part is Part.TOOL_CALL:
        return tool_piece(text, choice=choice)
    return Delta(choice=choice, part=part, text=text, raw=text.encode("utf-8", "replace"))


def play(layer_rows: Sequence[dict[str, object]], deltas: Sequence[Delta]) -> tuple[list[Event], Blocked | None]:
    script: list[Event | Exception] = [Start("m", "b"), *deltas, Finish({0: "stop", 1: "stop"})]
    events, error = asyncio.run(run_to_error(output(*layer_rows), Scripted(script)))
    assert error is None or isinstance(error, Blocked)
    return events, error


def cut(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def said_by(events: Sequence[Event]) -> dict[tuple[int, Part], str]:
    every = [(choice, part) for choice in (0, 1) for part in (Part.TEXT, Part.REASONING, Part.REFUSAL, Part.TOOL_CALL)]
    return {key: said(events, part=key[1], choice=key[0]) for key in every}


def merge(sequence: Sequence[tuple[tuple[int, Part], str]]) -> list[tuple[tuple[int, Part], str]]:
    """Join what stands side by side within a choice: the whole answer has each run as one piece."""
    merged: list[tuple[tuple[int, Part], str]] = []
    last: dict[int, int] = {}
    for key, text in sequence:
        if not text:
            continue
        at = last.get(key[0])
        if at is not None and merged[at][0] == key:
            merged[at] = (key, merged[at][1] + text)
        else:
            last[key[0]] = len(merged)
            merged.append((key, text))
    return merged


def holds_banned(text: str, words: list[str], *, whole_words: bool) -> bool:
    """Look for the words in the slow and plain way: at every place, each word by itself."""
    shadow = normalise(text).text
    bodies = [re.compile(re.escape(word).replace(r"\ ", r"\s{1,4}"), re.IGNORECASE) for word in words]
    for start in range(len(shadow)):
        for body in bodies:
            found = body.match(shadow, start)
            if found and not (whole_words and (joined(shadow, found.start()) or joined(shadow, found.end()))):
                return True
    return False


def joined(text: str, at: int) -> bool:
    return 0 < at < len(text) and in_word(text[at - 1]) and in_word(text[at])


def others(words: list[str]) -> dict[str, object]:
    return {"check": "banned_words", "words": words, "whole_words": False, "replacement": "%", "on_fail": "rewrite"}


SETS = st.sampled_from(
    [
        [free()],
        [free(whole_words=True)],
        *([free(words=[word], whole_words=whole)] for word in WORDS for whole in (True, False)),
        [free(words=["abcabc", "cafe"]), others(["e", "a", "cab"])],
        [free(words=["a", "cab"]), others(["abc", "b"])],
        [{"check": "secrets", "on_fail": "rewrite"}, free()],
        [free(mode="hold")],
    ]
)


def check_chunking(
    data: st.DataObject, sequence: list[tuple[tuple[int, Part], str]], rows: list[dict[str, object]]
) -> None:
    whole, _ = play(rows, [delta(key, text) for key, text in merge(sequence)])

    streamed, _ = play(rows, [delta(key, piece) for key, text in sequence for piece in cut(data, text)])

    assert said_by(streamed) == said_by(whole)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), sequence=runs, rows=SETS)
def test_the_same_answer_comes_out_for_every_chunking(
    data: st.DataObject, sequence: list[tuple[tuple[int, Part], str]], rows: list[dict[str, object]]
) -> None:
    check_chunking(data, sequence, rows)


@pytest.mark.long
@settings(deadline=None, max_examples=20_000)
@given(data=st.data(), sequence=runs, rows=SETS)
def test_the_same_answer_comes_out_for_very_many_chunkings(
    data: st.DataObject, sequence: list[tuple[tuple[int, Part], str]], rows: list[dict[str, object]]
) -> None:
    check_chunking(data, sequence, rows)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), text=texts, words=word_lists, whole_words=st.booleans())
def test_nothing_banned_is_ever_on_the_wire(
    data: st.DataObject, text: str, words: list[str], whole_words: bool
) -> None:
    pieces = cut(data, text)

    streamed, _ = play([free(words=words, whole_words=whole_words)], [delta((0, Part.TEXT), piece) for piece in pieces])

    assert not holds_banned(said(streamed), words, whole_words=whole_words)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), text=texts, words=word_lists, whole_words=st.booleans())
def test_a_block_comes_exactly_where_the_whole_answer_is_blocked(
    data: st.DataObject, text: str, words: list[str], whole_words: bool
) -> None:
    rows = [free(on_fail="block", words=words, whole_words=whole_words)]
    _, whole = play(rows, [delta((0, Part.TEXT), text)])

    streamed, error = play(rows, [delta((0, Part.TEXT), piece) for piece in cut(data, text)])

    assert (error is None) == (whole is None)
    assert (error is not None) == holds_banned(text, words, whole_words=whole_words)
    assert text.startswith(said(streamed))
    assert not holds_banned(said(streamed), words, whole_words=whole_words)


@settings(deadline=None, max_examples=200)
@given(data=st.data(), text=texts)
def test_what_is_not_rewritten_goes_out_as_it_came(data: st.DataObject, text: str) -> None:
    deltas = [delta((0, Part.TEXT), piece) for piece in cut(data, text)]

    streamed, _ = play([free()], deltas)

    came = [event for event in streamed if isinstance(event, Delta)]
    for event in came:
        assert event in deltas or event.raw is None
    if not holds_banned(text, WORDS, whole_words=False):
        assert came == deltas
