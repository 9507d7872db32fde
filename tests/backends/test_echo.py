from __future__ import annotations

import pytest

from backends.echo import EchoBackend
from orchestration.core import Call, Start, Usage
from orchestration.core.errors import InvalidRequest
from tests.backends.calls import ask, chat_call, completion_call


async def test_the_last_users_words_come_back_one_by_one() -> None:
    answer = await ask(EchoBackend(model="parrot"), chat_call("  say it\n again "))

    assert answer.start == Start(model="parrot", backend="echo")
    assert [delta.text for delta in answer.deltas] == ["  say ", "it\n ", "again "]
    assert answer.text() == "  say it\n again "
    assert answer.finish.reasons == {0: "stop"}
    assert answer.finish.usage == Usage(prompt_tokens=3, completion_tokens=3)


async def test_text_parts_and_choices_are_repeated() -> None:
    answer = await ask(EchoBackend(), chat_call([{"type": "text", "text": "a b"}], n=2))

    assert [answer.text(choice) for choice in range(2)] == ["a b", "a b"]
    assert answer.finish.usage == Usage(prompt_tokens=2, completion_tokens=4)


async def test_a_limit_ends_the_answer() -> None:
    answer = await ask(EchoBackend(), completion_call("one two three", max_tokens=1))

    assert answer.text() == "one "
    assert answer.finish.reasons == {0: "length"}


async def test_each_word_waits_for_its_delay() -> None:
    waits: list[float] = []

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)

    await ask(EchoBackend(delay_s=0.5, sleep=sleep), completion_call("one two"))

    assert waits == [0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (completion_call(5), "prompt"),
        (chat_call(messages=[{"role": "system", "content": "x"}]), "messages"),
        (chat_call(max_tokens=0), "max_tokens"),
    ],
)
async def test_a_wrong_request_is_refused(call: Call, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(EchoBackend(), call)

    assert caught.value.param == param


async def test_it_is_always_well() -> None:
    backend = EchoBackend()

    assert await backend.check_health() is None
    await backend.aclose()
