from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backends.remote.frames import joined
from orchestration.core import Delta, Part

PIECES = st.builds(
    Delta,
    choice=st.integers(0, 1),
    part=st.sampled_from([Part.TEXT, Part.TEXT, Part.REASONING, Part.TOOL_CALL]),
    text=st.sampled_from(["", "a", "bc"]),
    data=st.sampled_from([None, None, {"index": 0}]),
    logprobs=st.sampled_from([None, None, None, [{"token": "a"}]]),
    raw=st.sampled_from([None, b"", b"data: 1\n\n", b"data: 2\n\n"]),
    dialect=st.sampled_from([None, "openai.chat"]),
    covers=st.sampled_from([1, 1, 1, 2]),
)


def _said(deltas: list[Delta]) -> list[tuple[Any, ...]]:
    """List what was said, letter by letter, in order."""
    return [
        (delta.choice, delta.part, letter, str(delta.data), str(delta.logprobs))
        for delta in deltas
        for letter in (delta.text if delta.logprobs is None and delta.data is None else [delta.text])
    ]


@given(st.lists(PIECES, max_size=8))
def test_joined_pieces_say_the_same_and_have_the_same_frames(deltas: list[Delta]) -> None:
    found = joined(deltas)

    assert _said(found) == _said(deltas)
    assert b"".join(delta.raw or b"" for delta in found) == b"".join(delta.raw or b"" for delta in deltas)
    assert len(found) <= len(deltas)


@given(st.lists(PIECES, max_size=8))
def test_what_shares_its_frame_or_has_probabilities_or_data_stays_apart(deltas: list[Delta]) -> None:
    kept = [one for one in deltas if one.covers != 1 or one.raw == b"" or one.data is not None or one.logprobs]

    assert [one for one in joined(deltas) if any(one is each for each in kept)] == kept


def test_a_run_of_text_is_one_event_with_all_of_its_frames() -> None:
    run = [Delta(text=letter, raw=b"data: %d\n\n" % number, dialect="d") for number, letter in enumerate("abc")]

    assert joined(run) == [Delta(text="abc", raw=b"data: 0\n\ndata: 1\n\ndata: 2\n\n", dialect="d")]
