"""A check stands for the models, keys, teams and kinds that the settings name, and for no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestration.core import Kind
from tests.validators.scripts import Scripted, answer, make_call, rules, run
from validators.input_checks import InputChecks
from validators.output_checks import OutputChecks
from validators.scope import Caller, read_scope

CALLERS = {"k1": Caller("alice", "red"), "k2": Caller("bob")}


@pytest.mark.parametrize(
    ("only_for", "tenant", "model", "expected"),
    [
        (None, "k1", "m", True),
        ({"models": ["gpt-*"]}, "k1", "gpt-4", True),
        ({"models": ["gpt-*"]}, "k1", "m", False),
        ({"keys": ["alice"]}, "k1", "m", True),
        ({"keys": ["k1"]}, "k1", "m", True),
        ({"keys": ["alice"]}, "k2", "m", False),
        ({"keys": ["default"]}, "default", "m", True),
        ({"teams": ["red"]}, "k1", "m", True),
        ({"teams": ["red"]}, "k2", "m", False),
        ({"teams": ["*"]}, "default", "m", False),
        ({"teams": ["red"], "models": ["x"]}, "k1", "m", False),
        ({"kinds": ["completion"]}, "k1", "m", False),
    ],
)
def test_every_list_that_is_not_empty_must_match(only_for: Any, tenant: str, model: str, expected: bool) -> None:
    call = replace(make_call(model=model), tenant=tenant)

    assert read_scope(only_for).holds(call, CALLERS.get) == expected


async def test_rules_of_both_stages_are_left_out_for_other_calls() -> None:
    row = {"check": "banned_words", "words": ["bad"], "on_fail": "rewrite", "only_for": {"teams": ["red"]}}
    layers = (
        InputChecks(rules("input", row), caller_of=CALLERS.get),
        OutputChecks(rules("output", row), caller_of=CALLERS.get),
    )

    for tenant, num_notes in (("k1", 1), ("k2", 0)):
        for layer in layers:
            call = replace(make_call(), tenant=tenant)
            await run(layer, Scripted(answer("so bad")), call)
            assert len(call.notes.checks) == num_notes


def test_kinds_are_those_of_calls() -> None:
    assert read_scope({"kinds": list(Kind)}).holds(make_call(), CALLERS.get)
