from __future__ import annotations

from typing import Any

import pytest

from cache.storable import why_not_stored
from orchestration.core import (
    CacheControl,
    CacheNote,
    CacheStatus,
    Call,
    CheckNote,
    Controls,
    Delta,
    Event,
    Finish,
    Kind,
    Notes,
    Part,
    Request,
    Start,
)

START = Start("m", "b")
TEXT = Delta(text="Paris")


def a_call(
    *, kind: Kind = Kind.CHAT, notes: Notes | None = None, controls: Controls | None = None, **fields: Any
) -> Call:
    request = Request(kind, "openai", {"model": "m", **fields})
    return Call("c", "r", "t", request, 0.0, 0.0, controls=controls or Controls(), notes=notes or Notes())


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call"])
def test_complete_answers_are_stored(reason: str) -> None:
    assert why_not_stored(a_call(), [START, TEXT, Finish({0: reason})]) is None


@pytest.mark.parametrize("reason", ["length", "content_filter", "error", "", "aborted"])
def test_no_other_finish_is_stored(reason: str) -> None:
    assert why_not_stored(a_call(), [START, TEXT, Finish({0: reason})]) == f"finish_{reason}"


def test_one_cut_choice_spoils_the_answer() -> None:
    events: list[Event] = [START, TEXT, Delta(1, text="x"), Finish({0: "stop", 1: "length"})]

    assert why_not_stored(a_call(n=2), events) == "finish_length"


@pytest.mark.parametrize(
    "events",
    [
        [],
        [START, TEXT],
        [START, TEXT, Finish(), TEXT],
        [START, TEXT, Finish({})],
        [START, TEXT, Delta(1, text="x"), Finish({0: "stop"})],
    ],
    ids=["nothing", "no_finish", "goes_on_after_finish", "no_reason", "a_choice_without_reason"],
)
def test_a_partial_answer_is_not_stored(events: list[Event]) -> None:
    assert why_not_stored(a_call(), events) == "incomplete"


def test_a_choice_that_never_came_makes_it_partial() -> None:
    assert why_not_stored(a_call(n=2), [START, TEXT, Finish({0: "stop"})]) == "incomplete"


@pytest.mark.parametrize(
    ("prompt", "num_choices"),
    [("one", 1), ([1, 2, 3], 1), (["one", "two"], 2), ([[1, 2], [3]], 2)],
)
def test_every_prompt_of_a_list_must_have_its_answers(prompt: Any, num_choices: int) -> None:
    call = a_call(kind=Kind.COMPLETION, prompt=prompt, n=2)

    for num_finished in range(1, num_choices * 2 + 1):
        reasons = {choice: "stop" for choice in range(num_finished)}
        is_whole = num_finished == num_choices * 2
        assert why_not_stored(call, [START, TEXT, Finish(reasons)]) == (None if is_whole else "incomplete")


@pytest.mark.parametrize(("input", "num_vectors"), [("one", 1), ([1, 2, 3], 1), (["one", "two"], 2), ([[1], [2]], 2)])
def test_every_input_of_a_list_must_have_its_vector(input: Any, num_vectors: int) -> None:
    call = a_call(kind=Kind.EMBEDDING, input=input)
    vectors: list[dict[str, Any]] = [{"index": index, "embedding": [0.5]} for index in range(num_vectors)]

    assert why_not_stored(call, [START, Delta(part=Part.PAYLOAD, data=vectors), Finish({})]) is None
    assert why_not_stored(call, [START, Delta(part=Part.PAYLOAD, data=vectors[1:]), Finish({})]) == "incomplete"


def test_an_empty_answer_is_not_stored() -> None:
    assert why_not_stored(a_call(), [START, Delta(text=""), Finish()]) == "empty"


@pytest.mark.parametrize("kind", [Kind.EMBEDDING, Kind.RERANK])
def test_a_complete_payload_is_stored(kind: Kind) -> None:
    payload = Delta(part=Part.PAYLOAD, data=[{"index": 0, "embedding": [0.5]}])

    assert why_not_stored(a_call(kind=kind), [START, payload, Finish({})]) is None


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        (Notes(is_fallback=True), "fallback"),
        (Notes(checks=[CheckNote("json", "output", "error", "pass")]), "check_unrun"),
        (Notes(cache=CacheNote(status=CacheStatus.SEMANTIC)), "from_semantic"),
        (Notes(cache=CacheNote(status=CacheStatus.EXACT)), "from_exact"),
    ],
)
def test_an_answer_of_doubtful_origin_is_not_stored(notes: Notes, reason: str) -> None:
    assert why_not_stored(a_call(notes=notes), [START, TEXT, Finish()]) == reason


def test_a_check_that_passed_and_a_store_that_was_down_do_not_matter() -> None:
    notes = Notes(checks=[CheckNote("json", "output", "rewrite", "rewrite")], degraded=["exact_cache_down"])

    assert why_not_stored(a_call(notes=notes), [START, TEXT, Finish()]) is None


def test_no_store_is_obeyed() -> None:
    controls = Controls(cache=CacheControl(is_no_store=True))

    assert why_not_stored(a_call(controls=controls), [START, TEXT, Finish()]) == "no_store"
