from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.remote.sse import MAX_FRAME_BYTES, SseError, SseFrame, SseParser


def parse(pieces: Sequence[bytes]) -> list[SseFrame]:
    parser = SseParser()
    return [frame for piece in pieces for frame in parser.feed(piece)]


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b": comment",
        b"event: ping",
        b"id: 1",
        b"data: \xe4\xb8\x96",
        b"",
        b"",
        b"data: a:b",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=14).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(stream=STREAMS, places=st.lists(st.integers(0, 300), max_size=6), has_mark=st.booleans())
def test_any_split_gives_the_same_frames(stream: bytes, places: list[int], has_mark: bool) -> None:
    stream = b"\xef\xbb\xbf" * has_mark + stream
    borders = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]

    frames = parse([stream[begin:end] for begin, end in pairwise(borders)])

    assert frames == parse([stream])
    assert frames == parse([stream[place : place + 1] for place in range(len(stream))])


@given(stream=STREAMS)
def test_frames_are_those_of_the_standard_read_plainly(stream: bytes) -> None:
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    expected = []
    data: list[bytes] = []
    for line in text.split(b"\n")[:-1]:
        if not line and data:
            expected.append(b"\n".join(data))
        if not line:
            data = []
        elif line == b"data" or line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))

    assert [frame.data for frame in parse([stream])] == expected


def test_a_frame_keeps_its_lines_and_its_event() -> None:
    stream = b": note\nevent: delta\ndata: 1\ndata: 2\n\n"

    assert parse([stream]) == [SseFrame(event="delta", data=b"1\n2", raw=stream)]


def test_what_the_end_cuts_off_is_no_frame() -> None:
    assert parse([b"data: 1\n\ndata: 2\n"]) == [SseFrame(event="", data=b"1", raw=b"data: 1\n\n")]


def test_a_frame_without_an_end_is_refused() -> None:
    parser = SseParser()
    parser.feed(b"data: ")

    with pytest.raises(SseError, match="limit"):
        parser.feed(b"x" * MAX_FRAME_BYTES)
