from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from lab.bench.engine.answer import Piece, read_stream


def _chunk(text: str, *, reason: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": reason}]}).encode() + b"\n\n"


USAGE = {"completion_tokens": 5, "prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}
END = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"


def test_an_answer_has_the_times_of_its_text_and_the_counts_of_its_usage() -> None:
    pieces: list[Piece] = [(1.5, _chunk("a")), (2.0, b": keep-alive\n\n"), (2.5, _chunk("b", reason="length") + END)]

    answer = read_stream(pieces, begun_s=1.0, ended_s=3.0, is_from_cache=False)

    assert answer.error is None
    assert (answer.output_tokens, answer.prompt_tokens, answer.cached_tokens) == (5, 7, 2)
    assert answer.ttft_s == 0.5
    assert answer.tpot_s == (2.5 - 1.5) / 4
    assert answer.e2e_s == 2.0


def test_without_usage_the_events_with_text_are_counted() -> None:
    stream = _chunk("a") + _chunk("") + _chunk("b", reason="stop") + b"data: [DONE]\n\n"

    assert read_stream([(1.0, stream)], begun_s=0.0, ended_s=1.0, is_from_cache=False).output_tokens == 2


def test_a_stream_without_its_end_is_incomplete() -> None:
    for stream in (_chunk("a"), _chunk("a", reason="stop"), _chunk("a") + b"data: [DONE]\n\n", b""):
        answer = read_stream([(1.0, stream)], begun_s=0.0, ended_s=1.0, is_from_cache=False)

        assert answer.error == "the stream ended early"


def test_an_error_in_the_stream_is_the_answer_s_error() -> None:
    stream = _chunk("a") + b'data: {"error": {"message": "gone"}}\n\n'

    answer = read_stream([(1.0, stream)], begun_s=0.0, ended_s=1.0, is_from_cache=False)

    assert answer.error is not None
    assert "gone" in answer.error


@given(st.data())
def test_the_network_may_cut_the_stream_anywhere(data: st.DataObject) -> None:
    stream = (_chunk("a") + _chunk("b") + _chunk("c", reason="length") + END).replace(b"\n\n", b"\r\n\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    pieces = [(float(at), stream[begin:end]) for at, (begin, end) in enumerate(itertools.pairwise(edges))]

    answer = read_stream(pieces, begun_s=-1.0, ended_s=99.0, is_from_cache=False)

    assert answer.error is None
    assert len(answer.token_times) == 3
    assert answer.output_tokens == 5
