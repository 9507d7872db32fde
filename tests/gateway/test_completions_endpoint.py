from __future__ import annotations

from typing import Any

import openai
import pytest

from orchestration.core import Delta, Finish, Kind, Start, Usage
from orchestration.core.errors import StreamBroken
from tests.gateway.serving import COMPLETIONS, Script, ask, client_of, frames_of, parts_of, served

START = Start("tiny-1", "fake")
ANSWER = (START, Delta(text="Hel"), Delta(text="lo"), Finish(usage=Usage(5, 2)))


async def test_whole_completion_is_read_by_the_sdk() -> None:
    script = Script(ANSWER)
    async with client_of(parts_of(script)) as client:
        completion = await client.completions.create(model="tiny", prompt="Say")

    assert completion.choices[0].text == "Hello"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.object == "text_completion"
    assert completion.id.startswith("cmpl-")
    assert completion.usage is not None
    assert completion.usage.total_tokens == 7
    assert script.calls[0].kind is Kind.COMPLETION


async def test_streamed_completion_is_read_by_the_sdk() -> None:
    async with client_of(parts_of(Script(ANSWER))) as client:
        stream = await client.completions.create(
            model="tiny", prompt="Say", stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens == 5


async def test_stream_on_the_wire_is_exactly_what_openai_sends() -> None:
    async with served(parts_of(Script(ANSWER))) as port:
        reply = await ask(port, COMPLETIONS, {"model": "tiny", "prompt": "Say", "stream": True})

    first, _, last, done = frames_of(reply.body)
    assert list(first) == ["id", "object", "created", "model", "choices"]
    assert first["choices"] == [{"text": "Hel", "index": 0, "logprobs": None, "finish_reason": None}]
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert done == b"[DONE]"


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2, 3], [[1], [2, 3]], "a"])
async def test_prompts_of_every_shape_pass_as_they_came(prompt: Any) -> None:
    script = Script((START, Delta(choice=1, text="B"), Delta(text="A"), Finish(reasons={1: "stop", 0: "length"})))
    async with client_of(parts_of(script)) as client:
        completion = await client.completions.create(model="tiny", prompt=prompt)

    assert script.calls[0].request.fields["prompt"] == prompt
    assert [(choice.index, choice.text, choice.finish_reason) for choice in completion.choices] == [
        (0, "A", "length"),
        (1, "B", "stop"),
    ]


async def test_logprobs_of_the_pieces_are_joined() -> None:
    def logprobs(token: str, offset: int) -> dict[str, Any]:
        top = [{token: -0.5}]
        return {"tokens": [token], "token_logprobs": [-0.5], "top_logprobs": top, "text_offset": [offset]}

    script = Script(
        (START, Delta(text="A", logprobs=logprobs("A", 0)), Delta(text="B", logprobs=logprobs("B", 1)), Finish())
    )
    async with client_of(parts_of(script)) as client:
        completion = await client.completions.create(model="tiny", prompt="Say", logprobs=1)

    joined = completion.choices[0].logprobs
    assert joined is not None
    assert joined.tokens == ["A", "B"]
    assert joined.text_offset == [0, 1]
    assert joined.top_logprobs == [{"A": -0.5}, {"B": -0.5}]


async def test_broken_stream_makes_the_sdk_raise() -> None:
    script = Script((START, Delta(text="Hel"), StreamBroken("broke off")))
    async with client_of(parts_of(script)) as client:
        stream = await client.completions.create(model="tiny", prompt="Say", stream=True)
        await anext(stream)
        with pytest.raises(openai.APIError, match="broke off"):
            await anext(stream)
