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
    events = [START, TEXT, Delta(1, text="x"), Finish({0: "stop", 1: "length"})]

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
