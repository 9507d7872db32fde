"""Every text of a request is checked before anything else sees it."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from orchestration.core import Kind
from orchestration.core.errors import Blocked, CheckUnavailable, InvalidRequest
from tests.validators.scripts import FAILED, Fixed, Scripted, make_call, rewriting, rules, run
from validators.check import Subject
from validators.input_checks import TEXTS_A_TURN, InputChecks
from validators.policy import Fail, Mode, OnFail, Rule

KEY = "AKIA" + "IOSFODNN7EXAMPLE"
HIDDEN = "[secret removed]"


def checks(*rows: dict[str, Any]) -> InputChecks:
    return InputChecks(rules("input", *rows))


def banning(on_fail: str = "block", **options: Any) -> dict[str, Any]:
    return {"check": "banned_words", "words": ["forbidden"], "on_fail": on_fail, **options}


SECRETS = {"check": "secrets", "on_fail": "rewrite"}


async def passed_on(messages: list[dict[str, Any]], *rows: dict[str, Any]) -> list[dict[str, Any]]:
    core = Scripted()
    await run(checks(*rows), core, make_call(messages=messages))
    return list(core.calls[0].request.fields["messages"])


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "unheard-of"])
async def test_every_role_is_scanned(role: str) -> None:
    messages = await passed_on([{"role": role, "content": f"it is {KEY}"}], SECRETS)

    assert messages == [{"role": role, "content": f"it is {HIDDEN}"}]


async def test_every_content_part_with_text_is_scanned_and_media_are_not() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{KEY}"}}
    content = [{"type": "text", "text": KEY}, image, {"type": "new_sort", "body": {"inner": [KEY]}}]

    messages = await passed_on([{"role": "user", "content": content}], SECRETS)

    assert messages[0]["content"] == [
        {"type": "text", "text": HIDDEN},
        image,
        {"type": "new_sort", "body": {"inner": [HIDDEN]}},
    ]


async def test_tool_arguments_stay_json_when_rewritten() -> None:
    arguments = json.dumps({"note": f'say "{KEY}" \u00e9', "n": 1})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}

    row = {**SECRETS, "replacement": 'a "b"'}
    messages = await passed_on([{"role": "assistant", "content": None, "tool_calls": [call]}], row)

    function = messages[0]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"note": 'say "a "b"" \u00e9', "n": 1}


async def test_a_word_written_in_json_escapes_is_found() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "for\\u0062idden"}'}}

    with pytest.raises(Blocked) as caught:
        await passed_on([{"role": "assistant", "tool_calls": [call]}], banning())

    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


async def test_a_tool_result_is_masked() -> None:
    messages = await passed_on(
        [{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": KEY}]}], SECRETS
    )

    assert messages[0]["content"][0]["text"] == HIDDEN


async def test_the_request_as_it_came_is_not_changed_by_a_rewrite() -> None:
    call = make_call(messages=[{"role": "user", "content": KEY}], temperature=0, unknown={"kept": True})
    before = copy.deepcopy(dict(call.request.fields))
    core = Scripted()

    await run(checks(SECRETS), core, call)

    assert call.request.fields == before
    passed = core.calls[0].request
    assert passed.raw is None
    assert passed.fields == {**before, "messages": [{"role": "user", "content": HIDDEN}]}


async def test_a_request_without_findings_passes_as_the_same_object() -> None:
    call = make_call()
    core = Scripted()

    await run(checks(SECRETS, banning()), core, call)

    assert core.calls == [call]
    assert core.calls[0].request is call.request


async def test_a_block_names_the_text_and_reaches_nothing_behind_it() -> None:
    core = Scripted()
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "Forbidden!"}]},
    ]

    with pytest.raises(Blocked) as caught:
        await run(checks(banning()), core, make_call(messages=messages))

    assert caught.value.param == "messages[1].content[0].text"
    assert caught.value.status == 400
    assert "forbidden" not in caught.value.message.lower().replace("banned_words", "")
    assert core.calls == []


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (Kind.COMPLETION, {"prompt": "a forbidden thing"}, "prompt"),
        (Kind.COMPLETION, {"prompt": ["fine", "forbidden"]}, "prompt[1]"),
        (Kind.COMPLETION, {"prompt": "fine", "suffix": "forbidden"}, "suffix"),
        (Kind.EMBEDDING, {"input": "forbidden"}, "input"),
        (Kind.EMBEDDING, {"input": ["fine", "forbidden"]}, "input[1]"),
        (Kind.RERANK, {"query": "q", "documents": [{"text": "forbidden"}]}, "documents[0].text"),
        (Kind.CHAT, {"tools": [{"type": "function", "function": {"name": "f", "description": "forbidden"}}]},
         "tools[0].function.description"),
        *((Kind.CHAT,
           {"tools": [{"function": {"parameters": {"properties": {name: {"description": "forbidden"}}}}}]},
           f"tools[0].function.parameters.properties.{name}.description") for name in ("name", "id", "type", "file")),
        (Kind.CHAT, {"response_format": {"json_schema": {"name": "f", "schema": {"description": "forbidden"}}}},
         "response_format.json_schema.schema.description"),
        (Kind.CHAT, {"chat_template_kwargs": {"today": "forbidden"}}, "chat_template_kwargs.today"),
    ],
)  # fmt: skip
async def test_every_kind_of_request_is_scanned(kind: Kind, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Blocked) as caught:
        await run(checks(banning()), Scripted(), make_call(kind, **fields))

    assert caught.value.param == param


@pytest.mark.parametrize(
    "text", ["for\u200bbidden", "\uff46\uff4f\uff52bidden", "FOR\u202eBIDDEN", "forbi\u0336dden", "for\u00adbidden"]
)
async def test_a_word_in_disguise_is_found(text: str) -> None:
    messages = await passed_on([{"role": "user", "content": f"so {text}, yes"}], banning("rewrite"))

    assert messages[0]["content"] == "so ****, yes"


async def test_what_stands_around_a_match_is_not_normalised() -> None:
    messages = await passed_on(
        [{"role": "user", "content": "\ufb01ne\u200b \uff46orbidden \u00bd"}], banning("rewrite")
    )

    assert messages[0]["content"] == "\ufb01ne\u200b **** \u00bd"


async def test_token_ids_cannot_be_checked_and_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await run(checks(SECRETS), Scripted(), make_call(Kind.EMBEDDING, input=[[1, 2], [3]]))

    assert caught.value.param == "input"
    assert caught.value.status == 400


async def test_token_ids_pass_a_check_that_fails_open_and_the_record_says_so() -> None:
    call = make_call(Kind.COMPLETION, prompt=[1, 2])

    await run(checks({**SECRETS, "fail": "open"}), Scripted(), call)

    assert call.notes.checks[0].action == "failed_open"
    assert call.notes.degraded == ["check secrets (input) did not run"]


async def test_a_flag_changes_nothing_but_the_record() -> None:
    call = make_call(messages=[{"role": "user", "content": "forbidden"}])
    core = Scripted()

    await run(checks(banning("flag"), {**banning(), "mode": "observe"}), core, call)

    assert core.calls == [call]
    assert [(note.verdict, note.action) for note in call.notes.checks] == [("rewrite", "flagged")] * 2


async def test_every_check_that_ran_is_in_the_notes_with_its_time() -> None:
    call = make_call(messages=[{"role": "user", "content": f"a {KEY}"}])

    await run(checks({"check": "length", "max_chars": 99}, SECRETS), Scripted(), call)

    notes = {note.check: note for note in call.notes.checks}
    assert (notes["length"].verdict, notes["length"].action) == ("pass", "passed")
    assert (notes["secrets"].verdict, notes["secrets"].action) == ("rewrite", "rewritten")
    assert notes["secrets"].duration_ms > 0
    assert KEY not in str(call.notes)
    assert "input_checks" in call.notes.stages_ms


async def test_a_block_is_in_the_notes() -> None:
    call = make_call(messages=[{"role": "user", "content": "forbidden"}])

    with pytest.raises(Blocked):
        await run(checks(banning()), Scripted(), call)

    assert [(note.stage, note.action) for note in call.notes.checks] == [("input", "blocked")]


async def test_length_counts_all_texts_together_after_rewrites() -> None:
    messages = [{"role": "user", "content": "1234"}, {"role": "user", "content": "56789"}]

    with pytest.raises(Blocked) as caught:
        await run(checks({"check": "length", "max_chars": 8}), Scripted(), make_call(messages=messages))

    assert caught.value.param == "messages"
    assert "9 characters; at most 8" in caught.value.message


def rule(check: Fixed, *, fail: Fail = Fail.CLOSED, on_fail: OnFail = OnFail.BLOCK) -> Rule:
    return Rule(check=check, on_fail=on_fail, mode=Mode.HOLD, fail=fail)


async def test_a_check_that_cannot_run_and_fails_closed_ends_the_call() -> None:
    core = Scripted()
    call = make_call()

    with pytest.raises(CheckUnavailable) as caught:
        await run(InputChecks([rule(Fixed(FAILED))]), core, call)

    assert (caught.value.status, caught.value.code) == (503, "check_unavailable")
    assert core.calls == []
    assert [(note.verdict, note.action) for note in call.notes.checks] == [("error", "failed_closed")]


async def test_a_check_that_cannot_run_and_fails_open_is_asked_once_and_recorded() -> None:
    check = Fixed(FAILED)
    messages = [{"role": "user", "content": str(number)} for number in range(5)]
    call = make_call(messages=messages)
    core = Scripted()

    await run(InputChecks([rule(check, fail=Fail.OPEN)]), core, call)

    assert len(core.calls) == 1
    assert check.read == ["0"]
    assert call.notes.degraded == ["check fixed (input) did not run"]
    assert [(note.verdict, note.action) for note in call.notes.checks] == [("error", "failed_open")]


async def test_overlapping_findings_of_two_checks_become_one_edit() -> None:
    both = [
        rule(Fixed(rewriting(2, 5, "X"), name="first"), on_fail=OnFail.REWRITE),
        rule(Fixed(rewriting(4, 8, "Y"), name="second"), on_fail=OnFail.REWRITE),
    ]
    core = Scripted()

    await run(InputChecks(both), core, make_call(Kind.COMPLETION, prompt="0123456789"))

    assert core.calls[0].request.fields["prompt"] == "01X89"


async def test_a_shape_check_reads_the_text_as_it_is_and_after_rewrites() -> None:
    shape = Fixed(subject=Subject.SHAPE)
    content = rule(Fixed(rewriting(0, 1, "Z")), on_fail=OnFail.REWRITE)

    await run(InputChecks([rule(shape), content]), Scripted(), make_call(Kind.COMPLETION, prompt="\uff41\u200b!"))

    assert shape.read == ["Z\u200b!"]


async def test_the_model_is_asked_only_after_every_check_has_ended() -> None:
    order: list[str] = []

    class Noting(Fixed):
        async def check(self, text: str, context: Any) -> Any:
            order.append("check")
            return await super().check(text, context)

    class Core(Scripted):
        async def __call__(self, call: Any, /) -> Any:
            order.append("model")
            async for event in super().__call__(call):
                yield event

    await run(InputChecks([rule(Noting()), rule(Noting())]), Core())

    assert order == ["check", "check", "model"]


async def test_between_many_texts_others_have_their_turn() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    messages = await passed_on([{"role": "user", "content": f"{n} {KEY}"} for n in range(2_000)], SECRETS, banning())
    counting.cancel()

    assert messages == [{"role": "user", "content": f"{n} {HIDDEN}"} for n in range(2_000)]
    assert turns >= 3 * (2_000 // TEXTS_A_TURN)  # to read them, and for each check


async def test_what_no_rewrite_touches_is_shared_with_the_request_as_it_came() -> None:
    core, kept = Scripted(), {"role": "user", "content": [{"type": "text", "text": "fine"}]}
    call = make_call(messages=[kept, {"role": "user", "content": [{"type": "text", "text": KEY}, kept, KEY]}])

    await run(checks(SECRETS), core, call)

    changed = core.calls[0].request.fields["messages"]
    assert changed[1]["content"] == [{"type": "text", "text": HIDDEN}, kept, HIDDEN]
    assert changed[0] is kept
    assert call.request.fields["messages"][1]["content"][2] == KEY
