from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backends.local.detokenizer import Detokenizer

BYTES = st.one_of(
    st.binary(max_size=40),
    st.text(alphabet="ab🙂世é\u200d", max_size=20).map(str.encode),
    st.lists(
        st.sampled_from([b"\xf0", b"\x9f", b"\x99", b"\x82", b"a", b"\xe4\xb8", b"\xed\xa0\x80"]), max_size=12
    ).map(b"".join),
)
STOPS = st.lists(st.text(alphabet="ab🙂世\ufffd", min_size=1, max_size=4), max_size=4)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(borders)]


def run(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, bool]:
    detokenizer = Detokenizer(stops)
    text = "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.end()
    assert detokenizer.num_released == len(text)
    return text, detokenizer.is_stopped


def expect(data: bytes, stops: Sequence[str]) -> tuple[str, bool]:
    """Read the definition out plainly: character by character, until a stop string is complete."""
    whole = data.decode("utf-8", "replace")
    for end in range(len(whole) + 1):
        ending = [stop for stop in stops if whole[:end].endswith(stop)]
        if ending:
            return whole[: end - max(map(len, ending))], True
    return whole, False


@given(data=BYTES, stops=STOPS, places=st.lists(st.integers(0, 100), max_size=8))
def test_any_split_gives_the_text_cut_at_the_first_complete_stop(
    data: bytes, stops: list[str], places: list[int]
) -> None:
    assert run(cut(data, places), stops) == expect(data, stops)


@given(text=st.text(max_size=30))
def test_bytewise_pieces_give_whole_characters(text: str) -> None:
    detokenizer = Detokenizer()

    pieces = [detokenizer.push(bytes([byte])) for byte in text.encode()]

    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)


def test_text_is_held_no_longer_than_it_may_become_a_stop() -> None:
    detokenizer = Detokenizer(["END"])

    assert detokenizer.push(b"The E") == "The "
    assert detokenizer.push(b"N") == ""
    assert detokenizer.push(b"G") == "ENG"


def test_a_character_is_given_once_when_it_comes_in_halves() -> None:
    detokenizer = Detokenizer()

    assert [detokenizer.push(piece) for piece in (b"A \xe4\xb8", b"\x96", b"a", b"b")] == ["A ", "世", "a", "b"]


def test_bytes_left_over_become_a_replacement_at_the_end() -> None:
    detokenizer = Detokenizer()

    assert detokenizer.push(b"a\xf0\x9f") == "a"
    assert detokenizer.end() == "\ufffd"


def test_a_held_beginning_of_a_stop_comes_out_at_the_end() -> None:
    detokenizer = Detokenizer(["###"])

    assert detokenizer.push(b"done ##") == "done "
    assert detokenizer.end() == "##"
