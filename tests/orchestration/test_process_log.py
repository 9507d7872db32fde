"""A process's log: events with the call that they are about, and no words that nobody checked."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from orchestration.core.process_log import JsonLines, TextLines

SECRET = "the caller's own words"


def record_of(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("gateway.edge", logging.ERROR, __file__, 1, message, arguments, exc_info)


def failed() -> BaseException:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as exc:
            raise ValueError(f"cannot read {SECRET}") from exc
    except ValueError:
        error = sys.exception() if sys.version_info >= (3, 11) else None
    assert error is not None
    return error


def test_an_event_is_an_object_with_its_fields_and_the_calls_id() -> None:
    told = json.loads(JsonLines(mask=None).format(record_of("call.failed id=%s retries=%d: gone", "01J", 2)))

    assert (told["event"], told["call"], told["retries"]) == ("call.failed", "01J", "2")
    assert (told["level"], told["logger"], told["message"]) == (
        "error",
        "gateway.edge",
        "call.failed id=01J retries=2: gone",
    )
    assert told["at"].endswith("Z")


def test_what_is_no_event_is_a_message() -> None:
    told = json.loads(JsonLines(mask=None).format(record_of("Started: a=b")))

    assert "event" not in told
    assert told["message"] == "Started: a=b"


@pytest.mark.parametrize("lines", [TextLines, JsonLines])
def test_an_exceptions_words_are_left_out_and_its_place_is_not(lines: type[TextLines]) -> None:
    said = lines(mask=None).format(record_of("call.failed id=%s", "01J", error=failed()))

    assert SECRET not in said
    assert "builtins.KeyError" in said
    assert "builtins.ValueError" in said
    assert "in failed" in said


def test_words_are_shown_as_the_mask_leaves_them() -> None:
    lines = TextLines(mask=lambda text: text.replace(SECRET, "***"))

    said = lines.format(record_of("call.failed id=%s", "01J", error=failed()))

    assert "ValueError: cannot read ***" in said
    assert SECRET not in said


def test_json_of_any_text_is_one_line() -> None:
    said = JsonLines(mask=None).format(record_of("a\nb \ud800 %s", "ü"))

    assert len(said.splitlines()) == 1
