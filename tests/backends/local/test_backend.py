from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from backends.local.backend import LocalBackend
from backends.local.link import EngineLink
from backends.local.model import LocalModel
from backends.local.text import LocalText
from orchestration.core import Delta, Start, Usage
from orchestration.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    InvalidRequest,
    LaminaError,
    Overloaded,
)
from orchestration.core.notes import ENGINE
from tests.backends.calls import ask, chat_call, completion_call
from tests.backends.fake_engine import FakeEngine, Message, step

END = 2


def saying(text: LocalText, answer: str, *, finish: str = "stop", cached: int = 0) -> Any:
    """Make an engine that answers everything with a text, one token per frame."""
    ids = text._tokenizer.encode(answer).ids + ([END] if finish == "stop" else [])

    def on_submit(message: Message) -> list[Message]:
        last = len(ids) - 1
        return [
            step(message["id"], [token], finish=finish if position == last else None, cached=cached)
            for position, token in enumerate(ids)
        ]

    return on_submit


async def test_a_chat_is_rendered_submitted_and_answered(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.on_submit = saying(text, "Paris. 🙂", cached=5)

    answer = await ask(backend, chat_call("Capital?", tenant="acme", temperature=0, top_p=0.5, top_k=7, seed=11))

    submitted = engine.submitted[0]
    prompt = text.render_chat([{"role": "user", "content": "Capital?"}])
    assert text._tokenizer.decode(submitted["prompt"], skip_special_tokens=False) == prompt
    assert submitted["salt"] == "acme"
    assert (submitted["temperature"], submitted["top_p"], submitted["top_k"], submitted["seed"]) == (0.0, 0.5, 7, 11)
    assert submitted["max_tokens"] == 256 - len(submitted["prompt"])
    assert submitted["logprobs"] is None
    assert answer.start == Start(model="real-model", backend="engine")
    assert answer.text() == "Paris. 🙂"
    assert answer.finish.reasons == {0: "stop"}
    completion_tokens = len(text._tokenizer.encode("Paris. 🙂").ids) + 1
    assert answer.finish.usage == Usage(len(submitted["prompt"]), completion_tokens, cached_tokens=5)


async def test_defaults_are_those_of_openai(engine: FakeEngine, backend: LocalBackend, text: LocalText) -> None:
    engine.on_submit = saying(text, "x")

    await ask(backend, chat_call())

    submitted = engine.submitted[0]
    assert (submitted["temperature"], submitted["top_p"], submitted["top_k"]) == (1.0, 1.0, 0)
    assert (submitted["seed"], submitted["ignore_eos"], submitted["stop_ids"]) == (None, False, [])


async def test_one_token_is_one_token(engine: FakeEngine, backend: LocalBackend, text: LocalText) -> None:
    engine.on_submit = saying(text, "One", finish="length")

    answer = await ask(backend, chat_call(max_tokens=1))

    assert engine.submitted[0]["max_tokens"] == 1
    assert answer.finish.reasons == {0: "length"}
    assert answer.finish.usage is not None
    assert answer.finish.usage.completion_tokens == 1


async def test_what_is_ready_comes_in_one_delta(engine: FakeEngine, backend: LocalBackend, text: LocalText) -> None:
    ids = text._tokenizer.encode("one two three").ids
    engine.on_submit = lambda message: [
        step(message["id"], ids[:2]),
        step(message["id"], [*ids[2:], END], finish="stop"),
    ]

    answer = await ask(backend, chat_call())

    assert [delta.text for delta in answer.deltas] == ["one two three"]


async def test_a_stop_string_cuts_counts_and_aborts_the_rest(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    ids = text._tokenizer.encode("a b STOP c d").ids
    engine.on_submit = lambda message: [step(message["id"], ids)]

    answer = await ask(backend, chat_call(stop=["STOP", "never"]))

    assert answer.finish.stops == {0: "STOP"}
    assert answer.start.usage is not None
    assert answer.finish.usage is not None
    assert answer.start.usage.prompt_tokens == answer.finish.usage.prompt_tokens > 0
    assert answer.text() == "a b "
    assert answer.finish.reasons == {0: "stop"}
    until = next(count for count in range(len(ids)) if "STOP" in text.decode(ids[:count]))
    assert answer.finish.usage is not None
    assert answer.finish.usage.completion_tokens == until
    assert (await engine.next_message("abort"))["id"] == engine.submitted[0]["id"]


async def test_closing_the_generator_aborts_at_once(engine: FakeEngine, backend: LocalBackend, text: LocalText) -> None:
    engine.on_submit = lambda message: [step(message["id"], text._tokenizer.encode("hello").ids)]

    async with aclosing(backend(chat_call())) as events:
        assert isinstance(await anext(events), Start)
        assert isinstance(await anext(events), Delta)

    assert (await engine.next_message("abort"))["id"] == engine.submitted[0]["id"]


async def test_a_caller_that_leaves_before_the_first_token_aborts(engine: FakeEngine, backend: LocalBackend) -> None:
    task = asyncio.create_task(ask(backend, chat_call(n=2)))
    await engine.next_message("submit")
    await engine.next_message("submit")

    task.cancel()

    aborted = {(await engine.next_message("abort"))["id"] for _ in range(2)}
    assert aborted == {message["id"] for message in engine.submitted}
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_choices_have_their_own_seeds_texts_and_ends(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.on_submit = lambda message: saying(text, f"seed {message['seed']} END")(message)

    answer = await ask(backend, chat_call(n=3, seed=5, stop="END"))

    seeds = [message["seed"] for message in engine.submitted]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert [answer.text(choice) for choice in range(3)] == [f"seed {seed} " for seed in seeds]
    assert answer.finish.reasons == {0: "stop", 1: "stop", 2: "stop"}
    assert answer.finish.usage is not None
    assert answer.finish.usage.prompt_tokens == len(engine.submitted[0]["prompt"])


async def test_a_completion_takes_texts_and_token_ids(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.on_submit = lambda message: saying(text, text.decode(message["prompt"]))(message)
    ids = text._tokenizer.encode("Twice").ids

    texts = await ask(backend, completion_call(["Once", "Twice"], n=2))
    alone = await ask(backend, completion_call(ids))
    lists = await ask(backend, completion_call([ids, ids]))

    assert [texts.text(choice) for choice in range(4)] == ["Once", "Once", "Twice", "Twice"]
    assert alone.text() == "Twice"
    assert [lists.text(choice) for choice in range(2)] == ["Twice", "Twice"]
    assert engine.submitted[-1]["prompt"] == ids


async def test_chat_logprobs_follow_the_text(engine: FakeEngine, backend: LocalBackend, text: LocalText) -> None:
    ids = text._tokenizer.encode("ok 🙂 STOP").ids
    logprobs = [[-0.5, [[token, -0.5], [END, float("-inf")]]] for token in ids]
    engine.on_submit = lambda message: [
        step(message["id"], [token], logprobs=[entry]) for token, entry in zip(ids, logprobs, strict=True)
    ]

    answer = await ask(backend, chat_call(logprobs=True, top_logprobs=2, stop="STOP"))

    entries = [entry for delta in answer.deltas for entry in delta.logprobs or ()]
    assert engine.submitted[0]["logprobs"] == 2
    # The token " ST" begins in front of the cut, so it is the last one of the text.
    assert answer.text() == "ok 🙂 "
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "ok 🙂 ST"
    assert entries[0] == {
        "token": "ok",
        "logprob": -0.5,
        "bytes": [111, 107],
        "top_logprobs": [
            {"token": "ok", "logprob": -0.5, "bytes": [111, 107]},
            {"token": "<|im_end|>", "logprob": -9999.0, "bytes": []},
        ],
    }


async def test_completion_logprobs_have_offsets(engine: FakeEngine, backend: LocalBackend, text: LocalText) -> None:
    ids = text._tokenizer.encode("ok then").ids
    logprobs = [[-1.0, [[END, -0.1]]] for _ in [*ids, END]]
    engine.on_submit = lambda message: [step(message["id"], [*ids, END], logprobs=logprobs, finish="stop")]

    answer = await ask(backend, completion_call("x", logprobs=1))

    assert answer.deltas[0].logprobs == {
        "tokens": ["ok", " then"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"<|im_end|>": -0.1, "ok": -1.0}, {"<|im_end|>": -0.1, " then": -1.0}],
        "text_offset": [0, 2],
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": "2"}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"echo": True}, "echo"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 256}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 300}]}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 300_000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ],
)
async def test_a_wrong_chat_is_refused_by_its_field(
    engine: FakeEngine, backend: LocalBackend, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(backend, chat_call(**fields))

    assert caught.value.param == param
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": {"type": "json_object", "strict": True}}, '{"type": "json_object", "strict": true}'),
        ({"logprobs": "yes"}, 'not "yes"'),
        ({"top_p": None, "seed": 2**64}, str(2**64)),
    ],
)
async def test_a_wrong_value_is_quoted_as_the_client_wrote_it(
    backend: LocalBackend, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(backend, chat_call(**fields))

    assert words in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1, "logit_bias": {}, "presence_penalty": 0, "response_format": {"type": "text"}, "tools": []},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"top_k": -1, "stop": None, "temperature": None, "n": None, "seed": None, "logprobs": False, "user": "x"},
        {"unheard_of": {"a": 1}, "reasoning_effort": "low", "service_tier": "auto"},
    ],
)
async def test_fields_that_ask_for_nothing_pass(
    engine: FakeEngine, backend: LocalBackend, text: LocalText, fields: dict[str, Any]
) -> None:
    engine.on_submit = saying(text, "fine")

    assert (await ask(backend, chat_call(**fields))).text() == "fine"


@pytest.mark.parametrize("prompt", [None, "", [], [[]], 5, {"a": 1}, ["a", 1], [1, -1], [49152], [True], ["x"] * 129])
async def test_a_wrong_prompt_is_refused(engine: FakeEngine, backend: LocalBackend, prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(backend, completion_call(prompt))

    assert caught.value.param == "prompt"


async def test_a_prompt_over_the_context_says_both_counts(engine: FakeEngine, backend: LocalBackend) -> None:
    with pytest.raises(ContextTooLong, match=r"256 tokens.*resulted in 300 tokens") as caught:
        await ask(backend, completion_call([5] * 300))

    assert caught.value.code == "context_length_exceeded"


async def test_an_answer_is_bounded_by_the_memory_where_that_is_less(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.info["num_pages"] = 4
    engine.on_submit = saying(text, "x")

    await ask(backend, completion_call([5] * 10))

    assert engine.submitted[0]["max_tokens"] == 4 * 16 - 10


@pytest.mark.parametrize(
    ("code", "expected", "param"),
    [
        ("never_fits", ContextTooLong, "messages"),
        ("queue_full", Overloaded, None),
        ("bad_params", InvalidRequest, None),
        ("engine_error", BackendError, None),
    ],
)
async def test_the_engines_refusals_are_ours(
    engine: FakeEngine, backend: LocalBackend, code: str, expected: type[LaminaError], param: str | None
) -> None:
    engine.on_submit = lambda message: [
        {"op": "refused", "id": message["id"], "code": code, "message": "because", "retry_after_s": 1.5}
    ]

    with pytest.raises(expected, match="because") as caught:
        await ask(backend, chat_call())

    assert type(caught.value) is expected
    assert caught.value.param == param
    if expected is Overloaded:
        assert caught.value.retry_after_s == 1.5


async def test_one_refused_choice_aborts_the_others(engine: FakeEngine, backend: LocalBackend) -> None:
    engine.on_submit = lambda message: (
        [{"op": "refused", "id": message["id"], "code": "queue_full", "message": "full", "retry_after_s": None}]
        if len(engine.submitted) == 2
        else []
    )

    with pytest.raises(Overloaded):
        await ask(backend, chat_call(n=2))

    assert (await engine.next_message("abort"))["id"] == engine.submitted[0]["id"]


async def test_a_failed_sequence_is_an_error(engine: FakeEngine, backend: LocalBackend) -> None:
    engine.on_submit = lambda message: [step(message["id"], [], finish="error")]

    with pytest.raises(BackendError, match="failed"):
        await ask(backend, chat_call())


async def test_a_silent_engine_times_out_and_is_told_to_stop(
    engine: FakeEngine, link: EngineLink, text: LocalText, backend: LocalBackend
) -> None:
    model = LocalModel(link, path=engine.path, load=lambda path: text)
    impatient = LocalBackend(model, first_token_s=0.05)

    with pytest.raises(BackendTimeout):
        await ask(impatient, chat_call())

    assert (await engine.next_message("abort"))["id"] == engine.submitted[0]["id"]


async def test_a_top_p_of_zero_asks_for_the_likeliest_token(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.on_submit = saying(text, "Paris")

    await ask(backend, chat_call(top_p=0, temperature=2))

    assert 0 < engine.submitted[0]["top_p"] <= 1e-12


@pytest.mark.parametrize("fields", [{"max_tokens": 60}, {"max_tokens": 1, "content": "word " * 80}])
async def test_a_call_beyond_the_engines_memory_is_not_told_that_the_model_is_too_small(
    engine: FakeEngine, backend: LocalBackend, fields: dict[str, Any]
) -> None:
    engine.info["num_pages"] = 4  # 64 tokens of a context of 256

    with pytest.raises(
        ContextTooLong, match="is 64 tokens here, since the engine has KV memory for no more of its 256"
    ):
        await ask(backend, chat_call(fields.pop("content", "Hi"), **fields))


async def test_a_call_waits_for_its_turn_as_long_as_the_engine_moves(
    engine: FakeEngine, link: EngineLink, text: LocalText
) -> None:
    backend = LocalBackend(LocalModel(link, path=engine.path, load=lambda path: text), look_s=0.05)
    engine.stats = {"steps": 0}
    waiting = asyncio.create_task(ask(backend, chat_call()))
    await engine.next_message("submit")

    for look in range(4):  # others have their turn meanwhile
        await engine.next_message("stats")
        engine.stats = {"steps": look + 1}
    for frame in saying(text, "at last")(engine.submitted[0]):
        engine.send(frame)

    assert (await waiting).text() == "at last"


async def test_a_call_ends_where_the_engine_stands_still(engine: FakeEngine, link: EngineLink, text: LocalText) -> None:
    backend = LocalBackend(LocalModel(link, path=engine.path, load=lambda path: text), look_s=0.05)
    engine.stats = {"steps": 7}

    with pytest.raises(BackendTimeout):
        await ask(backend, chat_call())


async def test_the_engines_death_ends_calls_and_its_return_serves_again(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    waiting = asyncio.create_task(ask(backend, chat_call()))
    await engine.next_message("submit")
    await engine.stop()

    with pytest.raises(BackendUnavailable):
        await waiting
    assert await backend.check_health() is not None

    engine.on_submit = saying(text, "back")
    await engine.start()
    async with asyncio.timeout(30):
        while await backend.check_health() is not None:  # noqa: ASYNC110 - the back-off passes by the clock alone
            await asyncio.sleep(0.01)
    assert (await ask(backend, chat_call())).text() == "back"


def test_the_link_works_on_uvloop_as_the_server_runs_it(short_folder: Path, text: LocalText) -> None:
    async def ask_once() -> str:
        engine = FakeEngine(short_folder / "uvloop.sock", on_submit=saying(text, "quick"))
        await engine.start()
        link = EngineLink(engine.address)
        answer = await ask(LocalBackend(LocalModel(link, path=engine.path, load=lambda path: text)), chat_call())
        await link.aclose()
        await engine.stop()
        return answer.text()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask_once()) == "quick"


async def test_a_missing_tokenizer_is_said_by_the_health(link: EngineLink, engine: FakeEngine) -> None:
    broken = LocalBackend(LocalModel(link, path=engine.path.parent / "none.gguf"))

    assert "tokenizer" in (await broken.check_health() or "")


async def test_the_engine_s_times_are_noted_however_the_call_ends(engine: FakeEngine, backend: LocalBackend) -> None:
    told = {"queued": 0.0, "admitted": 1.5, "first_token": 2.5}
    engine.on_submit = lambda message: [{**step(message["id"], [400]), "events": [[message["id"], told]]}]
    call = chat_call("Hello")

    async with aclosing(backend(call)) as events:
        await anext(events)

    [noted] = call.notes.extra[ENGINE]
    assert {name: noted[name] for name in told} == told
    assert noted["submitted_ms"] >= 0


async def test_an_engine_that_tells_no_times_leaves_no_note(
    engine: FakeEngine, backend: LocalBackend, text: LocalText
) -> None:
    engine.on_submit = saying(text, "Paris.")
    call = chat_call("Hello")

    await ask(backend, call)

    assert ENGINE not in call.notes.extra
