"""Answers keep to a schema, whoever gave it, and no schema can make the check slow or reach out."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestration.core import Request
from tests.validators.looks import verdict_of
from tests.validators.scripts import make_call
from validators.check import Outcome
from validators.json_schema import JsonSchema

SCHEMA = {
    "type": "object",
    "required": ["city"],
    "properties": {"city": {"type": "string", "pattern": "^[a-z]+$"}, "sizes": {"items": {"type": "integer"}}},
    "patternProperties": {"^x_": {"type": "null"}},
}

BACKTRACKING = {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^(a+)+$": True}}]}


def asking(schema: Any) -> Request:
    return make_call(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}).request


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"city": "rome", "sizes": [1], "x_a": null}', None),
        ("{}", "it departs from its schema: $ lacks city"),
        ('{"city": 1}', "it departs from its schema: $.* is not of type string"),
        ('{"city": "ROME"}', "it departs from its schema: $.* fails 'pattern'"),
        ('{"city": "rome", "sizes": [1, "secret"]}', "it departs from its schema: $.*[1] is not of type integer"),
        ('{"city": "rome", "x_a": 1}', "it departs from its schema: $.* is not of type null"),
        ("no", "it is not JSON: Expecting value at line 1, column 1"),
    ],
)
def test_an_answer_is_held_to_the_schema(text: str, reason: str | None) -> None:
    assert verdict_of("json_schema", text, schema=SCHEMA).reason == reason
    assert verdict_of("json_schema", text, request=asking(SCHEMA)).reason == reason


def test_without_a_schema_only_requests_that_ask_for_one_are_looked_at() -> None:
    check = JsonSchema()

    assert check.applies(asking(SCHEMA))
    assert not check.applies(make_call(response_format={"type": "json_object"}).request)
    assert not check.applies(make_call().request)


def test_a_schema_that_would_take_for_ever_is_given_up() -> None:
    doubled = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
    bomb = {"$ref": "#/$defs/a0", "$defs": {**doubled, "a40": {}}}
    begun = time.process_time()

    verdict = verdict_of("json_schema", "1", request=asking(bomb))

    assert verdict.outcome is Outcome.ERROR
    assert time.process_time() - begun < 30  # followed to the end it would be 2^40 references


def test_a_pattern_runs_in_linear_time() -> None:
    text = '"' + "a" * 5_000 + '!"'

    assert verdict_of("json_schema", text, request=asking({"pattern": "^(a+)+$"})).outcome is Outcome.BLOCK


@pytest.mark.parametrize("name", ["a" * 5_000 + "!", "a" * 30 + "!"])
def test_a_propertys_name_is_looked_for_in_linear_time(name: str) -> None:
    schema = {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False}

    verdict = verdict_of("json_schema", f'{{"{name}": 1}}', request=asking(schema))

    assert verdict.reason == "it departs from its schema: $ fails 'additionalProperties'"
    assert verdict_of("json_schema", '{"aa": 1}', request=asking(schema)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"city": "rome", "x_a": null}', None),
        ('{"city": "rome", "x_a": null, "b": 1}', None),
        ('{"b": "one"}', "it departs from its schema: $.* is not of type integer"),
        ("[]", None),
    ],
)
def test_what_is_additional_is_what_neither_names_nor_patterns_say(text: str, reason: str | None) -> None:
    schema = {
        "properties": {"city": True},
        "patternProperties": {"^x_": True},
        "additionalProperties": {"type": "integer"},
    }

    assert verdict_of("json_schema", text, schema=schema).reason == reason


@pytest.mark.parametrize(
    "schema", [{"$ref": "http://127.0.0.1:9/x"}, {"$ref": "#/nowhere"}, {"$ref": "file:///etc/passwd"}]
)
def test_a_reference_out_of_the_schema_leads_nowhere(schema: Any) -> None:
    verdict = verdict_of("json_schema", "1", request=asking(schema))

    assert verdict.outcome is Outcome.ERROR
    assert "a reference leads nowhere" in str(verdict.reason)
    assert verdict.is_requests_fault


def test_a_schema_too_deep_to_read_is_the_requests_fault() -> None:
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"not": schema}

    verdict = verdict_of("json_schema", "1", request=asking(schema))

    assert verdict.outcome is Outcome.ERROR
    assert verdict.is_requests_fault


@pytest.mark.parametrize("schema", [{"type": 5}, {"pattern": "(?=a)"}, {"x": "y" * 100_001}, BACKTRACKING])
def test_a_schema_that_is_none_is_refused_at_start(schema: Any) -> None:
    with pytest.raises(ValueError, match="schema: "):
        verdict_of("json_schema", "1", schema=schema)
    assert verdict_of("json_schema", "1", request=asking(schema)).outcome is Outcome.ERROR
