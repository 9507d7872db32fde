from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import Entry
from cache.replay import cut, replay
from orchestration.core import Call, Delta, Event, Finish, Kind, Part, Request, Start, Usage

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
VISIBLE = [
    "a", "é", "e\u0301", "\U0001f44d\U0001f3fd", FAMILY, "\U0001f1eb\U0001f1f7", "한", "\u1112\u1161\u11ab", "नि",
    "\r\n", "❤\ufe0f",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "z" + "\u0300\u0330" * 5, "\u4e2d",
]  # fmt: skip


def a_call(*, is_streamed: bool) -> Call:
    fields = {"model": "m", "messages": [], "stream": is_streamed}
    return Call("c2", "r2", "t", Request(Kind.CHAT, "openai", fields), received_at=0.0, started=0.0)


def an_entry(*events: Event) -> Entry:
    return Entry("e1", "c1", "model", "backend", created_at=0.0, ttl_s=60.0, events=events)


async def told(entry: Entry, *, is_streamed: bool) -> list[Event]:
    return [event async for event in replay(entry, a_call(is_streamed=is_streamed))]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


@given(st.text(alphabet=st.characters(), max_size=3000))
def test_the_pieces_of_any_text_are_that_text(text: str) -> None:
    pieces = list(cut(Delta(text=text)))

    assert text_of(pieces) == text
    assert len(pieces) <= 65
    assert all(piece.text for piece in pieces) or pieces == [Delta(text="")]


@given(st.lists(st.sampled_from(VISIBLE), min_size=30, max_size=300))
def test_no_visible_character_is_cut(visible: list[str]) -> None:
    ends, length = set(), 0
    for character in visible:
        length += len(character)
        ends.add(length)

    pieces = list(cut(Delta(text="".join(visible))))

    length = 0
    for piece in pieces:
        length += len(piece.text)
        assert length in ends, f"cut before {unicodedata.name(piece.text[-1], '?')}"


def test_a_flag_is_cut_only_between_flags() -> None:
    pieces = list(cut(Delta(text="x" + "\U0001f1eb\U0001f1f7" * 100)))

    assert len(pieces) > 1
    assert all(piece.text.count("\U0001f1eb") == piece.text.count("\U0001f1f7") for piece in pieces)


def test_half_surrogates_that_belong_together_stay_together() -> None:
    pieces = list(cut(Delta(text="\ud83d\ude00" * 100)))

    assert all(piece.text.startswith("\ud83d") and piece.text.endswith("\ude00") for piece in pieces)


async def test_a_stream_is_replayed_as_several_deltas() -> None:
    entry = an_entry(Start("m", "b"), Delta(text="word " * 100), Finish(usage=Usage(3, 100, 2, 1)))

    events = await told(entry, is_streamed=True)

    assert events[0] == Start("m", "b")
    assert len(events) > 10
    assert text_of(events) == "word " * 100
    assert events[-1] == Finish(usage=Usage(3, 100, 2, 1))


async def test_a_whole_answer_is_replayed_as_it_was_kept() -> None:
    entry = an_entry(Start("m", "b"), Delta(text="word " * 100), Finish())

    assert await told(entry, is_streamed=False) == list(entry.events)


async def test_an_entry_without_start_gets_one() -> None:
    events = await told(an_entry(Delta(text="a"), Finish()), is_streamed=True)

    assert events[0] == Start("model", "backend")


async def test_a_replay_begins_with_the_count_of_its_prompt() -> None:
    finish = Finish(usage=Usage(7, 2, cached_tokens=3))

    start, *_ = await told(an_entry(Start("m", "b"), Delta(text="x"), finish), is_streamed=True)

    assert isinstance(start, Start)
    assert start.usage == Usage(prompt_tokens=7, cached_tokens=3)


async def test_reasoning_comes_back_as_reasoning() -> None:
    reasoning = "because " * 50
    entry = an_entry(Start("m", "b"), Delta(part=Part.REASONING, text=reasoning), Delta(text="42"), Finish())

    events = await told(entry, is_streamed=True)

    assert text_of([e for e in events if isinstance(e, Delta) and e.part is Part.REASONING]) == reasoning
    assert text_of([e for e in events if isinstance(e, Delta) and e.part is Part.TEXT]) == "42"


async def test_tool_calls_come_back_unchanged() -> None:
    call = Delta(part=Part.TOOL_CALL, data={"index": 0, "id": "x", "function": {"name": "f", "arguments": "{" * 500}})
    entry = an_entry(Start("m", "b"), call, Finish({0: "tool_calls"}))

    assert await told(entry, is_streamed=True) == list(entry.events)


@pytest.mark.parametrize("num_tokens", [1, 100])
def test_logprobs_stay_with_their_tokens(num_tokens: int) -> None:
    logprobs = [{"token": f"tok{i} ", "logprob": -float(i)} for i in range(num_tokens)]
    delta = Delta(text="".join(str(item["token"]) for item in logprobs), logprobs=logprobs)

    pieces = list(cut(delta))

    assert [item for piece in pieces for item in piece.logprobs] == logprobs
    assert text_of(pieces) == delta.text
    for piece in pieces:
        assert "".join(item["token"] for item in piece.logprobs) == piece.text
    assert len(pieces) == 1 or num_tokens > 1


def test_logprobs_that_do_not_spell_the_text_keep_it_whole() -> None:
    completions = Delta(text="a" * 100, logprobs={"tokens": ["a"] * 100})
    other = Delta(text="a" * 100, logprobs=[{"token": "b"}])

    assert list(cut(completions)) == [completions]
    assert list(cut(other)) == [other]
