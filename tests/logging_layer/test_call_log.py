"""The outermost layer: one record per call, whatever becomes of the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logging_layer.call_log import CallLog
from logging_layer.content import redact
from logging_layer.record import CallRecord, Outcome, Phase
from logging_layer.stages import SPANS
from orchestration.core import Call, Delta, Event, Finish, Part, Start, compose
from orchestration.core.errors import BackendTimeout, Blocked, StreamBroken
from tests.logging_layer.samples import Kept, answering, layered, make_call, make_record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


async def test_an_answered_call_has_one_record_with_everything_decided() -> None:
    record = await make_record(temperature=0.0, user="u1", metadata={"session_id": "s1"})

    assert (record.outcome, record.phase, record.status, record.error) == (Outcome.ANSWERED, Phase.FINISHED, 200, None)
    assert record.usage is not None
    assert (record.usage.prompt_tokens, record.model, record.backend) == (12, "small-1", "engine")
    assert record.cache.candidates[0].similarity == 0.71
    assert record.content.answer == [{"index": 0, "text": "The capital of France is Paris."}]
    assert (record.user, record.session, record.tenant) == ("u1", "s1", "tenant-a")
    assert record.ttft_ms is not None
    assert record.overhead_ms is not None
    assert 0 <= record.overhead_ms <= record.ttft_ms <= record.duration_ms
    assert record.finish_reasons == {"0": "stop"}


async def test_the_record_is_json_of_a_stated_version() -> None:
    record = await make_record()

    read = json.loads(record.to_json())

    assert read["version"] == 1
    [candidate] = read["cache"]["candidates"]
    assert (candidate["entry"], candidate["similarity"], candidate["veto"]) == ("entry-1", 0.71, None)
    assert read["checks"][0]["check"] == "length"
    assert read["outcome"] == "answered"


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (BackendTimeout("too slow"), Outcome.ERROR, "backend_timeout"),
        (Blocked("banned"), Outcome.BLOCKED, "content_blocked"),
        (KeyError("a fault of ours"), Outcome.ERROR, "KeyError"),
    ],
)
async def test_a_failed_call_has_one_record_with_its_code(error: Exception, outcome: Outcome, code: str) -> None:
    async def failing(call: Call, /) -> AsyncGenerator[Event, None]:
        raise error
        yield  # a generator

    record = await make_record(core=failing)

    assert (record.outcome, record.phase) == (outcome, Phase.BEFORE_CONTENT)
    assert record.error is not None
    assert record.error.code == code
    assert record.status == getattr(error, "status", 500)


async def test_a_stream_that_breaks_keeps_what_was_said() -> None:
    async def breaking(call: Call, /) -> AsyncGenerator[Event, None]:
        yield Start("m", "b")
        yield Delta(text="The capital")
        raise StreamBroken("gone")

    record = await make_record(core=breaking)

    assert (record.outcome, record.phase) == (Outcome.ERROR, Phase.STREAMING)
    assert record.content.answer == [{"index": 0, "text": "The capital"}]


async def test_a_stream_that_ends_without_saying_so_is_an_error() -> None:
    async def ending(call: Call, /) -> AsyncGenerator[Event, None]:
        yield Start("m", "b")

    record = await make_record(core=ending)

    assert record.error is not None
    assert record.error.code == "unfinished"


@pytest.mark.parametrize(
    ("num_events", "outcome", "phase"),
    [
        (1, Outcome.CLIENT_LEFT, Phase.BEFORE_CONTENT),
        (2, Outcome.CLIENT_LEFT, Phase.STREAMING),
        (3, Outcome.CLIENT_LEFT, Phase.STREAMING),
        (4, Outcome.ANSWERED, Phase.FINISHED),
    ],
)
async def test_a_client_that_leaves_between_events_leaves_one_record(
    num_events: int, outcome: Outcome, phase: Phase
) -> None:
    spool = Kept()
    async with aclosing(layered(spool)(make_call())) as events:
        for _ in range(num_events):
            await anext(events)

    assert [(record.outcome, record.phase) for record in spool.records] == [(outcome, phase)]


async def test_a_client_that_never_reads_leaves_no_record_and_no_work() -> None:
    spool = Kept()

    async with aclosing(layered(spool)(make_call())):
        pass

    assert spool.records == []


@pytest.mark.parametrize(("num_events", "phase"), [(0, Phase.BEFORE_CONTENT), (2, Phase.STREAMING)])
async def test_a_client_that_leaves_while_waiting_leaves_one_record(num_events: int, phase: Phase) -> None:
    spool, is_waiting = Kept(), asyncio.Event()

    async def hanging(call: Call, /) -> AsyncGenerator[Event, None]:
        events: list[Event] = [Start("m", "b"), Delta(text="The")]
        for event in events[:num_events]:
            yield event
        is_waiting.set()
        await asyncio.Event().wait()

    async def read() -> None:
        async with aclosing(layered(spool, hanging)(make_call())) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(read())
    await is_waiting.wait()
    task.cancel()
    await asyncio.wait([task])

    assert [(record.outcome, record.phase, record.status) for record in spool.records] == [
        (Outcome.CLIENT_LEFT, phase, 499)
    ]


async def test_tool_calls_are_put_together_from_their_pieces() -> None:
    pieces = [
        [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"ci'}}],
        [{"index": 0, "function": {"arguments": 'ty": "Paris"}'}}],
    ]

    async def calling(call: Call, /) -> AsyncGenerator[Event, None]:
        yield Start("m", "b")
        for piece in pieces:
            yield Delta(part=Part.TOOL_CALL, data=piece)
        yield Finish(reasons={0: "tool_calls"})

    record = await make_record(core=calling)

    assert record.content.answer is not None
    assert record.content.answer[0]["tool_calls"] == [{"id": "c1", "name": "look", "arguments": '{"city": "Paris"}'}]


async def test_vectors_are_counted_and_not_kept() -> None:
    async def embedding(call: Call, /) -> AsyncGenerator[Event, None]:
        yield Start("m", "b")
        yield Delta(part=Part.PAYLOAD, data=[{"index": 0, "embedding": [-0.123456789] * 384}])
        yield Finish(reasons={})

    record = await make_record(core=embedding)

    assert record.num_vectors == 1
    assert b"0.123456789" not in record.to_json()


async def test_a_long_answer_is_kept_up_to_its_bound_and_the_record_says_so() -> None:
    spool = Kept()

    async def long(call: Call, /) -> AsyncGenerator[Event, None]:
        yield Start("m", "b")
        for _ in range(100):
            yield Delta(text="x" * 10)
        yield Finish()

    log = CallLog(spool, content="full", worker="w0", max_answer_chars=25)
    async with aclosing(compose([log], long)(make_call())) as events:
        assert len([event async for event in events]) == 102

    record = spool.records[0]
    assert record.content.answer == [{"index": 0, "text": "x" * 25}]
    assert (record.num_chars, record.content.left_out) == (1000, ("answer: too long",))


@pytest.mark.parametrize("content", ["redacted", "none"])
async def test_no_text_is_in_a_record_that_may_hold_none(content: str) -> None:
    fields = {"user": "Marie", "stop": ["Lyon"], "metadata": {"Toulouse": "Nice", "type": "Nantes"}}

    async def quoting(call: Call, /) -> AsyncGenerator[Event, None]:
        call.notes.extra["seen"] = "Bordeaux"
        yield Start("m", "b")
        yield Delta(text="Paris")
        raise BackendTimeout("asked about France")

    record = await make_record(core=quoting, content=content, **fields)

    written = record.to_json().decode()
    for word in ["France", "Paris", "capital", "Marie", "Lyon", "Toulouse", "Nice", "Nantes", "Bordeaux"]:
        assert word not in written
    assert record.request_hash
    assert record.num_chars == 5


@pytest.mark.parametrize(("content", "affinity"), [("full", "f00d"), ("redacted", None), ("none", None)])
async def test_a_routing_decision_can_be_computed_again_but_for_a_hash_of_text(
    content: str, affinity: str | None
) -> None:
    order = {"strategy": "prefix", "options": [{"id": "a", "in_flight": 3}], "turn": 1, "affinity": "f00d"}

    async def routed(call: Call, /) -> AsyncGenerator[Event, None]:
        call.notes.extra["routing"] = {"orders": [order], "hedge": {"after_ms": 5.0}}
        yield Start("m", "b")
        yield Finish()

    record = await make_record(core=routed, content=content)

    assert record.extra["routing"] == {"orders": [{**order, "affinity": affinity}], "hedge": {"after_ms": 5.0}}


async def test_redacted_content_keeps_roles_lengths_and_sampling() -> None:
    record = await make_record(content="redacted", temperature=0.2)

    assert record.content.request == {
        "model": {"redacted": "text", "length": 5},
        "messages": [{"role": "user", "content": {"redacted": "text", "length": 30}}],
        "temperature": 0.2,
    }


@settings(deadline=None)  # others use this machine too
@given(JSON.filter(lambda value: isinstance(value, dict)))
def test_redacting_lets_no_text_of_its_own_through(value: dict[str, object]) -> None:
    texts: list[str] = []

    def gather(item: object) -> None:
        match item:
            case str():
                texts.append(item)
            case dict():
                for inner in item.values():
                    gather(inner)
            case list():
                for inner in item:
                    gather(inner)

    gather(redact(value))

    assert set(texts) <= {"text", "number", "numbers", "user", "system", "function", "auto", "none"}


async def test_a_mask_sees_every_text_of_full_content() -> None:
    spool = Kept()
    log = CallLog(spool, content="full", worker="w0", mask=lambda text: text.replace("Paris", "***"))
    session = {"session_id": "Paris"}

    async def refusing(call: Call) -> AsyncGenerator[Event, None]:
        raise BackendTimeout("the server does not like 'Paris'")
        yield Start("never", "said")

    async with aclosing(
        compose([log], answering)(make_call(stop=["Paris"], user="of Paris", metadata=session))
    ) as events:
        async for _ in events:
            pass
    async with aclosing(compose([log], refusing)(make_call(user="of Paris", metadata=session))) as events:
        with pytest.raises(BackendTimeout):
            await anext(events)

    assert [record.user for record in spool.records] == ["of ***"] * 2
    assert not [record for record in spool.records if b"Paris" in record.to_json()]


@pytest.mark.parametrize("value", [2**70, "\ud800", float("nan"), {"a": {"b": [None]}}])
async def test_what_a_client_may_send_can_always_be_written(value: object) -> None:
    record = await make_record(odd=value)

    assert json.loads(record.to_json())["id"] == record.id


async def test_a_request_nested_beyond_writing_still_has_a_record() -> None:
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]

    record = await make_record(odd=nested)

    assert record.content.left_out == ("request: nested too deeply",)
    assert json.loads(record.to_json())["outcome"] == "answered"


async def test_equal_requests_have_equal_hashes_whatever_their_order() -> None:
    first = await make_record(a=1, b=2)
    second = await make_record(b=2, a=1)
    third = await make_record(a=1, b=3)

    assert first.request_hash == second.request_hash != third.request_hash


async def test_each_layer_reached_has_a_span_inside_the_one_before() -> None:
    record = await make_record()

    names = [span["name"] for span in record.spans]
    assert names == ["limits", "input_checks", "exact_cache", "semantic_cache", "output_checks", "router"]
    for outer, inner in zip(record.spans, record.spans[1:], strict=False):
        assert outer["start_ms"] <= inner["start_ms"] <= inner["first_ms"] <= outer["first_ms"]
        assert inner["end_ms"] <= outer["end_ms"] <= record.duration_ms
    assert record.stages_ms.keys() == set(names)
    assert SPANS not in record.extra


async def test_a_layer_that_is_not_reached_has_no_span() -> None:
    async def blocking(call: Call, next: object, /) -> AsyncGenerator[Event, None]:
        raise Blocked("no")
        yield

    from logging_layer.stages import timed

    spool = Kept()
    handler = compose(
        [CallLog(spool, content="full", worker="w0"), timed("input_checks", blocking), timed("limits", blocking)],
        answering,
    )
    with pytest.raises(Blocked):
        await anext(handler(make_call()))

    assert [span["name"] for span in spool.records[0].spans] == ["input_checks"]
    assert "end_ms" in spool.records[0].spans[0]


async def test_records_of_concurrent_calls_do_not_mix() -> None:
    spool = Kept()
    handler = layered(spool)

    async def ask(number: int) -> str:
        call = make_call(number=number)
        async with aclosing(handler(call)) as events:
            async for _ in events:
                await asyncio.sleep(0)
        return call.id

    ids = await asyncio.gather(*(ask(number) for number in range(50)))

    def shape(record: CallRecord) -> tuple[str, int, int]:
        return record.id, len(record.spans), len(record.checks)

    assert {shape(record) for record in spool.records} == {(call_id, 6, 1) for call_id in ids}
