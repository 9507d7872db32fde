from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import CODEC_VERSION, Entry, UnreadableEntry, condense, dump, load
from orchestration.core import Delta, Event, Finish, Part, Start, Usage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
# Half a surrogate pair is in the alphabet: a model can write one.
TEXT = st.text(alphabet=st.characters(), max_size=200)
DELTAS = st.builds(
    Delta,
    choice=st.integers(0, 2),
    part=st.sampled_from([Part.TEXT, Part.REASONING, Part.REFUSAL, Part.TOOL_CALL, Part.PAYLOAD]),
    text=TEXT,
    data=JSON,
    logprobs=st.none() | st.lists(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False))),
)
FINISHES = st.builds(
    Finish,
    reasons=st.dictionaries(st.integers(0, 2), st.text(max_size=9)),
    usage=st.none() | st.builds(Usage, *[st.integers(0, 10**9)] * 5),
    stops=st.dictionaries(st.integers(0, 2), st.text(max_size=9)),
)


def an_entry(*events: Event) -> Entry:
    return Entry("e1", "c1", "model", "backend", created_at=1000.0, ttl_s=60.0, events=events)


@given(st.lists(DELTAS, max_size=6), FINISHES)
def test_an_entry_comes_back_from_its_bytes(deltas: list[Delta], finish: Finish) -> None:
    entry = an_entry(Start("model", "backend"), *deltas, finish)

    assert load(dump(entry)) == entry


def test_large_entries_are_kept_compressed() -> None:
    entry = an_entry(Delta(text="the same words again " * 1000), Finish())

    packed = dump(entry)

    assert len(packed) < 2000
    assert load(packed) == entry


def test_raw_frames_are_not_kept() -> None:
    entry = an_entry(Delta(text="a", raw=b"data: secret frame", dialect="openai"))

    packed = dump(entry)

    assert b"secret" not in packed
    assert load(packed).events == (Delta(text="a"),)


def test_another_version_cannot_be_read() -> None:
    packed = bytearray(dump(an_entry(Finish())))
    packed[2] = CODEC_VERSION + 1

    with pytest.raises(UnreadableEntry, match="no entry of version"):
        load(bytes(packed))


@given(st.binary(max_size=60))
def test_no_bytes_at_all_raise_anything_but_unreadable(noise: bytes) -> None:
    for packed in (noise, dump(an_entry())[:4] + noise, b"LE\x01\x01" + noise):
        try:
            load(packed)
        except UnreadableEntry:
            continue


@pytest.mark.parametrize("text", ["short", "long and long again " * 1000])
def test_a_cut_entry_cannot_be_read(text: str) -> None:
    packed = dump(an_entry(Delta(text=text), Finish()))

    for length in range(0, len(packed), 7):
        with pytest.raises(UnreadableEntry):
            load(packed[:length])


def test_what_json_cannot_say_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="call c1 cannot be packed"):
        dump(an_entry(Delta(part=Part.PAYLOAD, data=object())))


def test_pieces_of_one_choice_and_part_are_joined() -> None:
    events: list[Event] = [
        Start("m", "b"),
        Delta(0, Part.REASONING, "so "),
        Delta(1, text="x"),
        Delta(0, Part.REASONING, "then"),
        Delta(0, text="Pa"),
        Delta(1, text="y"),
        Delta(0, text=""),
        Delta(0, text="ris", raw=b"data", dialect="openai"),
        Finish(raw=b"data: [DONE]", dialect="openai"),
    ]

    condensed = condense(events)

    assert condensed == (
        Start("m", "b"),
        Delta(0, Part.REASONING, "so then"),
        Delta(1, text="xy"),
        Delta(0, text="Paris"),
        Finish(),
    )


def test_pieces_with_logprobs_keep_each_its_own() -> None:
    events = [Delta(text="a", logprobs=[{"token": "a"}]), Delta(text="b", logprobs=[{"token": "b"}]), Delta(text="c")]

    assert condense(events) == tuple(events)


def test_tool_calls_stay_apart_and_in_order() -> None:
    call = Delta(part=Part.TOOL_CALL, data={"index": 0, "function": {"arguments": "{"}})
    events = [Delta(text="a"), call, call, Delta(text="b")]

    assert condense(events) == tuple(events)


def test_age_is_never_negative() -> None:
    assert an_entry().age_s(990.0) == 0.0
    assert an_entry().age_s(1010.0) == 10.0
