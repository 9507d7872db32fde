"""Answers are checked on their way out: held whole, held back by a window, or only watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from orchestration.core import Call, Delta, Event, Finish, Kind, Part, Start, Usage, compose
from orchestration.core.errors import BackendError, Blocked, CheckUnavailable
from tests.validators.scripts import (
    FAILED,
    Fixed,
    Scripted,
    answer,
    make_call,
    output,
    rewriting,
    run,
    run_to_error,
    said,
    tool_piece,
)
from validators.check import Subject
from validators.output_checks import OutputChecks
from validators.policy import Fail, Mode, OnFail, Rule


def banning(on_fail: str = "rewrite", **options: Any) -> dict[str, Any]:
    return {"check": "banned_words", "words": ["forbidden", "bad idea"], "on_fail": on_fail, **options}


def rule(check: Any, *, mode: Mode = Mode.HOLD, fail: Fail = Fail.CLOSED, on_fail: OnFail = OnFail.BLOCK) -> Rule:
    return Rule(check=check, on_fail=on_fail, mode=mode, fail=fail)


async def first_events(layer: OutputChecks, core: Scripted, *, count: int) -> list[Event]:
    seen: list[Event] = []
    async with aclosing(compose([layer], core)(make_call())) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == count:
                break
    return seen


async def test_a_stream_is_released_up_to_the_longest_match_while_it_still_runs() -> None:
    words = [f"word{number} " for number in range(20)]
    core = Scripted([Start("m", "b"), *(Delta(text=word) for word in words), BackendError("broke")])

    seen, error = await run_to_error(output(banning()), core)

    assert isinstance(error, BackendError)
    whole, held = "".join(words), "".join(words).removeprefix(said(seen))
    assert whole.startswith(said(seen))
    assert 0 < len(held) <= len("bad    idea") + 2 + max(map(len, words))


async def test_events_without_findings_go_out_as_they_came() -> None:
    script = answer("all ", "is ", "well, ", "and so it ends")
    script.insert(1, Delta(raw=b"role", dialect="d"))
    script[-1] = Finish(usage=Usage(3, 4), raw=b"end", dialect="d")

    assert await run(output(banning()), Scripted(script)) == script
    assert await run(output(banning(mode="hold")), Scripted(script)) == script


async def test_a_rewritten_event_has_no_raw_frames_and_no_logprobs_and_the_others_keep_theirs() -> None:
    pieces = ["so ", "forbid", "den, ", "yes it is"]
    logprobs = [{"token": piece} for piece in pieces]
    deltas = [
        Delta(text=piece, logprobs=[log], raw=b"r", dialect="d") for piece, log in zip(pieces, logprobs, strict=True)
    ]

    events = await run(output(banning()), Scripted([Start("m", "b"), *deltas, Finish()]))

    assert events[1:-1] == [
        deltas[0],
        Delta(text="****", dialect="d"),
        Delta(text=", ", dialect="d"),
        deltas[3],
    ]


async def test_a_block_before_any_content_goes_out_leaves_nothing_on_the_wire() -> None:
    script = [Start("m", "b"), Delta(raw=b"role"), *answer("for", "bidden")[1:]]

    for mode in ("window", "hold"):
        seen, error = await run_to_error(output(banning("block", mode=mode)), Scripted(script))
        assert isinstance(error, Blocked)
        assert error.status == 400
        assert seen == []


async def test_a_block_in_mid_stream_comes_after_the_clean_part() -> None:
    core = Scripted(answer("a long and harmless beginning, ", "and then a for", "bidden thing to say, ", "and more"))
    call = make_call()

    seen, error = await run_to_error(output(banning("block")), core, call)

    assert isinstance(error, Blocked)
    assert said(seen) == "a long and harmless beginning, "
    assert "banned_words" in error.message
    assert [(note.stage, note.verdict, note.action) for note in call.notes.checks] == [("output", "rewrite", "blocked")]


async def test_a_blocked_answer_is_nowhere_in_the_error_or_the_record() -> None:
    call = make_call()

    _, error = await run_to_error(output(banning("block")), Scripted(answer("forbidden")), call)

    assert isinstance(error, Blocked)
    assert "forbidden" not in error.message + str(call.notes)


@pytest.mark.parametrize("part", [Part.TEXT, Part.REASONING, Part.REFUSAL])
@pytest.mark.parametrize("mode", ["window", "hold"])
async def test_every_part_of_every_choice_is_checked(part: Part, mode: str) -> None:
    script: list[Event | Exception] = [Start("m", "b")]
    script += [Delta(choice=choice, part=part, text=piece) for piece in ("for", "bidden") for choice in (0, 1, 2)]
    script += [Finish({0: "stop", 1: "stop", 2: "stop"})]

    events = await run(output(banning(mode=mode)), Scripted(script))

    assert [said(events, part=part, choice=choice) for choice in (0, 1, 2)] == ["****"] * 3


async def test_tool_arguments_are_checked_one_call_at_a_time_and_keep_their_names() -> None:
    pieces = ['{"a": "for', 'bid\\u0064en"}']
    script: list[Event | Exception] = [
        Start("m", "b"),
        tool_piece("", index=0, name="f"),
        tool_piece("", index=1, name="g"),
    ]
    script += [tool_piece(piece, index=index) for index in (0, 1) for piece in pieces] + [Finish({0: "tool_calls"})]

    events = await run(output(banning()), Scripted(script))

    calls: dict[int, str] = {}
    for event in events:
        if isinstance(event, Delta):
            index = event.data["index"]
            calls[index] = calls.get(index, "") + event.data["function"]["arguments"]
    assert calls == {0: '{"a": "****"}', 1: '{"a": "****"}'}
    assert [event.data["function"].get("name") for event in events[1:3] if isinstance(event, Delta)] == ["f", "g"]


async def test_reasoning_goes_out_before_the_text_that_follows_it() -> None:
    script: list[Event | Exception] = [Start("m", "b")]
    script += [Delta(part=Part.REASONING, text="I think of it"), Delta(text="the answer is a long one"), Finish()]

    events = await run(output(banning()), Scripted(script))

    assert events == script


async def test_a_match_interrupted_by_another_part_never_goes_out_whole() -> None:
    script: list[Event | Exception] = [
        Start("m", "b"),
        Delta(text="for"),
        Delta(part=Part.REASONING, text="hm"),
        Delta(text="bidden!"),
        Finish(),
    ]

    assert said(await run(output(banning()), Scripted(script))) == "for****!"


async def test_sub_words_are_joined_with_nothing_between_them() -> None:
    script = answer("for", " bidden", " ass", "istance")

    assert await run(output(banning()), Scripted(script)) == script


async def test_a_piece_that_is_no_text_between_pieces_of_text_goes_through() -> None:
    script: list[Event | Exception] = [
        Start("m", "b"),
        Delta(text="for"),
        Delta(raw=b": ping"),
        Delta(text="bidden"),
        Finish(),
    ]

    events = await run(output(banning()), Scripted(script))

    assert said(events) == "****"
    assert Delta(raw=b": ping") in events


async def test_empty_text_beside_reasoning_does_not_break_the_reasoning_into_pieces() -> None:
    script: list[Event | Exception] = [Start("m", "b")]
    for piece in ("for", "bidden", " or so"):
        script += [Delta(part=Part.REASONING, text=piece), Delta(text="")]

    events = await run(output(banning()), Scripted([*script, Finish()]))

    assert said(events, part=Part.REASONING) == "**** or so"


async def test_a_character_is_not_cut_from_its_marks() -> None:
    script = answer("cafe", "\u0301 and ", "\ud83d", "\ude00 all well that ends well")

    assert await run(output(banning()), Scripted(script)) == script


async def test_a_hidden_word_longer_than_the_window_is_found() -> None:
    hidden = "\u200b\u2060".join("forbidden") + "\u200b" * 50

    events = await run(output(banning()), Scripted(answer("x ", *hidden, " y")))

    assert said(events) == "x ****" + "\u200b" * 50 + " y"


async def test_streamed_and_whole_answers_take_the_same_way() -> None:
    text = "this is a forbidden thing and a bad  idea, forbidden."

    whole = await run(output(banning()), Scripted(answer(text)))
    streamed = await run(output(banning()), Scripted(answer(*text)))

    assert said(whole) == said(streamed) == "this is a **** thing and a ****, ****."


async def test_json_is_demanded_of_the_answer_as_it_leaves() -> None:
    for text, is_good in [
        ('{"a": 1}', True),
        ("Sure! {}", False),
        ("NaN", False),
        ('{"a": 1} x', False),
        ("[" * 99999, False),
    ]:
        seen, error = await run_to_error(output({"check": "json"}), Scripted(answer(text[:5], text[5:])))
        assert (error is None) == is_good
        assert (seen != []) == is_good


async def test_json_only_where_the_request_asked_for_it() -> None:
    layer = output({"check": "json", "when": "requested"})
    asked = make_call(response_format={"type": "json_object"})

    assert said(await run(layer, Scripted(answer("hello")))) == "hello"
    assert isinstance((await run_to_error(layer, Scripted(answer("hello")), asked))[1], Blocked)


async def test_an_answer_too_long_is_cut_and_one_too_short_is_blocked() -> None:
    row = {"check": "length", "max_chars": 7, "min_chars": 3, "on_fail": "rewrite"}

    events = await run(output(row), Scripted(answer("hello ", "world")))
    seen, error = await run_to_error(output(row), Scripted(answer("hi")))

    assert said(events) == "hello w"
    assert seen == []
    assert isinstance(error, Blocked)


async def test_length_counts_what_leaves_after_other_rewrites() -> None:
    rows = [{"check": "length", "max_chars": 6, "on_fail": "rewrite"}, banning()]

    assert said(await run(output(*rows), Scripted(answer("a ", "forbidden", " one")))) == "a ****"


async def test_an_answer_that_calls_a_tool_has_no_text_to_measure() -> None:
    script: list[Event | Exception] = [Start("m", "b"), tool_piece("{}", name="f"), Finish({0: "tool_calls"})]

    rows: list[dict[str, Any]] = [{"check": "length", "min_chars": 5}, {"check": "json"}]

    assert await run(output(*rows), Scripted(script)) == script


async def test_an_empty_answer_is_too_short() -> None:
    _, error = await run_to_error(output({"check": "length", "min_chars": 1}), Scripted([Start("m", "b"), Finish()]))

    assert isinstance(error, Blocked)


@pytest.mark.parametrize(
    "row", [banning("block", mode="observe"), banning("flag"), {"check": "json", "on_fail": "flag"}]
)
async def test_watching_changes_and_delays_nothing(row: dict[str, Any]) -> None:
    script = answer("for", "bidden", " thing")
    core = Scripted(script)
    call = make_call()

    assert await first_events(output(row), core, count=2) == script[:2]
    assert await run(output(row), Scripted(script), call) == script
    assert [(note.check, note.action) for note in call.notes.checks] == [(row["check"], "flagged")]


async def test_notes_are_written_before_finish_goes_out() -> None:
    call = make_call()
    num_notes = -1
    async with aclosing(compose([output(banning())], Scripted(answer("fine")))(call)) as events:
        async for event in events:
            if isinstance(event, Finish):
                num_notes = len(call.notes.checks)

    assert num_notes == 1
    assert call.notes.checks[0].duration_ms > 0


async def test_a_client_that_leaves_closes_the_backend_at_once() -> None:
    for mode in ("window", "observe"):
        core = Scripted(answer(*["some words "] * 50))
        await first_events(output(banning(mode=mode)), core, count=3)
        assert core.num_closed == 1


async def test_a_client_that_leaves_a_held_answer_closes_the_backend_at_once() -> None:
    is_reached = asyncio.Event()
    is_closed = False

    async def endless(call: Call, /) -> AsyncGenerator[Event, None]:
        nonlocal is_closed
        try:
            yield Start("m", "b")
            yield Delta(text="some")
            is_reached.set()
            await asyncio.Event().wait()
        finally:
            is_closed = True

    task = asyncio.create_task(run(output({"check": "json"}), endless))
    await is_reached.wait()
    task.cancel()
    await asyncio.wait([task])

    assert is_closed


async def test_a_check_that_fails_closed_lets_nothing_out() -> None:
    call = make_call()

    seen, error = await run_to_error(OutputChecks([rule(Fixed(FAILED))]), Scripted(), call)

    assert seen == []
    assert isinstance(error, CheckUnavailable)
    assert call.notes.checks[0].action == "failed_closed"


async def test_a_check_that_fails_open_lets_the_answer_out_and_the_record_says_so() -> None:
    call = make_call()
    script = answer("fine")

    assert await run(OutputChecks([rule(Fixed(FAILED), fail=Fail.OPEN)]), Scripted(script), call) == script
    assert call.notes.degraded == ["check fixed (output) did not run"]
    assert [(note.verdict, note.action) for note in call.notes.checks] == [("error", "failed_open")]


async def test_a_held_check_runs_once_per_text_and_not_per_event() -> None:
    check = Fixed()
    script: list[Event | Exception] = [Start("m", "b")]
    script += [Delta(part=part, text=piece) for part in (Part.REASONING, Part.TEXT) for piece in "several"] + [Finish()]

    await run(OutputChecks([rule(check)]), Scripted(script))

    assert check.read == ["several", "several"]


async def test_a_held_rewrite_falls_on_the_events_it_touches() -> None:
    script = answer("abc", "def", "ghi")
    held = rule(Fixed(rewriting(2, 4, "--")), on_fail=OnFail.REWRITE)

    events = await run(OutputChecks([held]), Scripted(script))

    assert events == [script[0], Delta(text="ab--", dialect="d"), Delta(text="ef", dialect="d"), *script[3:]]


async def test_an_answer_longer_than_can_be_held_is_blocked() -> None:
    layer = OutputChecks([rule(Fixed(subject=Subject.SHAPE))], max_held_chars=10)

    seen, error = await run_to_error(layer, Scripted(answer("12345678", "9012")))

    assert seen == []
    assert isinstance(error, Blocked)
    assert error.code == "answer_too_long_to_check"


async def test_embeddings_pass_untouched() -> None:
    payload = Delta(part=Part.PAYLOAD, data=[{"index": 0, "embedding": [0.5]}])
    script: list[Event | Exception] = [Start("m", "b"), payload, Finish()]

    assert (
        await run(output(banning(), {"check": "json"}), Scripted(script), make_call(Kind.EMBEDDING, input="x"))
        == script
    )


async def test_calls_at_the_same_time_do_not_exchange_text() -> None:
    layer = output(banning(), {"check": "secrets", "on_fail": "rewrite"})

    async def one(number: int) -> str:
        async def slow(call: Call, /) -> AsyncGenerator[Event, None]:
            yield Start("m", "b")
            for piece in (f"call {number} ", "says for", "bidden ", f"and {number}"):
                await asyncio.sleep(0)
                yield Delta(text=piece)
            yield Finish()

        return said(await run(layer, slow))

    answers = await asyncio.gather(*(one(number) for number in range(50)))

    assert answers == [f"call {number} says **** and {number}" for number in range(50)]
