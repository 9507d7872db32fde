"""Faults in text that other engines' users reported in public, each as a test that ours does not have it.

The numbers are those of vllm (v), sglang (s), llama.cpp (l), and others by name.
"""

from __future__ import annotations

import pytest

from backends.local.backend import LocalBackend
from backends.local.detokenizer import Detokenizer
from backends.local.sampling import read_sampling
from backends.local.text import LocalText
from orchestration.core.errors import InvalidRequest
from tests.backends.calls import ask, chat_call, completion_call
from tests.backends.fake_engine import FakeEngine, step


def test_s31598_an_offset_never_moves_back_where_a_broken_character_is_followed_by_letters() -> None:
    detokenizer = Detokenizer()

    pieces = [detokenizer.push(piece) for piece in (b"A \xe4\xb8\x96\xe7", b"a", b"b")]

    assert pieces == ["A 世", "\ufffda", "b"]
    assert detokenizer.end() == ""


def test_exo1691_vllm_mlx109_mlx_vlm1778_a_split_emoji_is_never_shown_in_pieces() -> None:
    family = "👩\u200d👩\u200d👧 x".encode()
    for cut in range(1, len(family)):
        detokenizer = Detokenizer()
        shown = detokenizer.push(family[:cut]) + detokenizer.push(family[cut:]) + detokenizer.end()
        assert shown.encode() == family


@pytest.mark.parametrize("cut", range(1, len("</think>")))
def test_v45636_what_is_held_back_for_a_stop_string_comes_out_whole(cut: int) -> None:
    marker = "</think>"
    detokenizer = Detokenizer(["</tool>"])

    shown = detokenizer.push(marker[:cut].encode()) + detokenizer.push(marker[cut:].encode())

    assert shown + detokenizer.end() == marker


async def test_v57052_stop_strings_work_for_a_prompt_of_token_ids(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    ids = text._tokenizer.encode("one STOP two").ids
    engine.on_submit = lambda message: [step(message["id"], ids)]

    answer = await ask(backend, completion_call([5, 6, 7], stop=["STOP"], max_tokens=20))

    assert answer.text() == "one "
    assert answer.finish.reasons == {0: "stop"}


def test_l27174_v6521_v39556_echo_is_refused_by_name_and_never_half_done() -> None:
    with pytest.raises(InvalidRequest, match="'echo'"):
        read_sampling(completion_call(echo=True, logprobs=1, max_tokens=1).request)
    with pytest.raises(InvalidRequest, match="'max_tokens'"):
        read_sampling(completion_call(max_tokens=0).request)


def test_s31378_a_minimum_of_tokens_is_refused_by_name_and_never_ignored() -> None:
    with pytest.raises(InvalidRequest, match="'min_tokens'"):
        read_sampling(chat_call(min_tokens=4).request)
