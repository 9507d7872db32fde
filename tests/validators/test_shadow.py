"""The shadow equals NFKC without invisible characters, and every span in it has its way back."""

from __future__ import annotations

import json
import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validators.shadow import DIACRITICS, IGNORABLE, LATE_STARTERS, normalise

INTERESTING = (
    "ae\u0301\u0300\u200b\u202e\ufeff\ufb03\uff41\uff76\uff9e"
    "\u1100\u1161\u11a8\uac00\u09c7\u09be\u00bd\u3164\U0001d400\u0345\u0323"
)
mixed = st.text(alphabet=st.sampled_from(INTERESTING), max_size=20) | st.text(max_size=20)

surrogates = st.text(alphabet=st.sampled_from("ae\ud834\udd65\udb40\udc01\u0301"), max_size=8)
escaped = st.text(alphabet=st.sampled_from("ae\\u0301d846\u0301"), max_size=16) | mixed.map(json.dumps) | surrogates


def plain(text: str) -> str:
    composed = unicodedata.normalize("NFKC", re.sub(f"[{IGNORABLE}]", "", text))
    return re.sub(f"[{DIACRITICS}]", "", composed)


@settings(deadline=None, max_examples=500)
@given(mixed)
def test_a_shadow_is_nfkc_without_invisible_characters_and_loose_diacritics(text: str) -> None:
    assert normalise(text).text == plain(text)


@settings(deadline=None, max_examples=500)
@given(mixed, st.data())
def test_a_span_maps_back_to_text_that_holds_it(text: str, data: st.DataObject) -> None:
    shadow = normalise(text)
    if not shadow.text:
        return
    start = data.draw(st.integers(0, len(shadow.text) - 1))
    end = data.draw(st.integers(start + 1, len(shadow.text)))

    first, last = shadow.original(start, end)

    assert 0 <= first < last <= len(text)
    assert shadow.text[start:end] in plain(text[first:last])
    assert shadow.text == plain(text[:first]) + plain(text[first:last]) + plain(text[last:])


@settings(deadline=None, max_examples=500)
@given(mixed | escaped, mixed | escaped, st.booleans())
def test_the_stable_part_stays_whatever_follows(text: str, more: str, is_json: bool) -> None:
    before, after = normalise(text, is_json=is_json), normalise(text + more, is_json=is_json)

    assert after.text[: before.stable] == before.text[: before.stable]
    assert [before.offset(index) for index in range(before.stable)] == [
        after.offset(index) for index in range(before.stable)
    ]


@settings(deadline=None, max_examples=500)
@given(mixed | escaped, st.booleans(), st.data())
def test_a_text_cut_between_segments_has_the_rest_of_the_shadow(text: str, is_json: bool, data: st.DataObject) -> None:
    shadow = normalise(text, is_json=is_json)
    head = shadow.segment(data.draw(st.integers(0, len(shadow.text))))

    assert normalise(text[shadow.offset(head) :], is_json=is_json).text == shadow.text[head:]


@settings(deadline=None, max_examples=300)
@given(mixed)
def test_json_escapes_are_read_as_what_they_stand_for(text: str) -> None:
    written = json.dumps({"a": text})  # with escapes for everything that is not ASCII

    shadow = normalise(written, is_json=True)

    assert plain(text) in shadow.text


def test_an_escape_cut_in_two_is_not_stable() -> None:
    assert normalise('{"a": "s\\u00', is_json=True).stable == len('{"a": "')


def test_a_surrogate_pair_is_one_segment_and_a_lone_one_a_replacement_character() -> None:
    assert normalise("a\ud83d\ude00b").text == "a\U0001f600b"
    assert normalise("a\ud83d\ude00b").original(1, 2) == (1, 3)
    assert normalise("a\ud83db").text == "a\ufffdb"


def test_a_word_with_invisible_characters_inside_maps_to_all_of_it() -> None:
    shadow = normalise("a s\u200be\u202ec\u2060ret z")

    start = shadow.text.index("secret")

    assert shadow.original(start, start + 6) == (2, 11)


def test_the_list_of_late_starters_is_all_of_them() -> None:
    late = re.compile(f"[{LATE_STARTERS}]")
    missing = []
    for code in range(sys.maxunicode + 1):
        pair = unicodedata.decomposition(chr(code)).split()
        if len(pair) == 2 and not pair[0].startswith("<"):
            second = chr(int(pair[1], 16))
            composes = unicodedata.normalize("NFC", chr(int(pair[0], 16)) + second) == chr(code)
            if composes and unicodedata.combining(second) == 0 and not late.match(second):
                missing.append(f"{ord(second):04x}")

    assert missing == []


@pytest.mark.parametrize("jamo", ["\u1161", "\u1175", "\u11a8", "\u11c2"])
def test_hangul_letters_melt_into_the_syllable_before_them(jamo: str) -> None:
    assert normalise("\u1100" + ("\u1161" if jamo > "\u1180" else "") + jamo).stable == 0
