"""Checks of the settings become rules, hashes that part the caches, and a header."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.checks import plan_checks
from gateway.headers import decision_headers
from gateway.refusals import SettingsError
from gateway.settings import Settings
from gateway.settings.rules import check_rules
from orchestration.core import CheckNote, Notes
from tests.validators.scripts import make_call
from validators import registry
from validators.scope import Caller

CALLERS = {"k1": Caller("alice", "red")}


def settings_of(*output: dict[str, Any]) -> Settings:
    return Settings.model_validate({"validators": {"input": [], "output": list(output)}})


def test_answers_are_shared_only_among_calls_of_equal_checks() -> None:
    ban = {"check": "banned_words", "words": ["a"]}
    plan = plan_checks(settings_of({**ban, "only_for": {"keys": ["alice"]}}, {"check": "secrets"}))
    policy_of = plan.policy_of(CALLERS.get)

    ours, others = policy_of(replace(make_call(), tenant="k1")), policy_of(replace(make_call(), tenant="k2"))

    assert ours != others
    assert policy_of(make_call()) == others
    assert others == plan_checks(settings_of({"check": "secrets"})).policy


def test_no_check_is_built_while_a_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_checks(settings_of({"check": "secrets", "only_for": {"keys": ["alice"]}}))
    policy_of, expected = plan.policy_of(CALLERS.get), plan.policy
    monkeypatch.setattr(registry, "OWN", {})

    assert policy_of(replace(make_call(), tenant="k1")) == expected


def test_without_scopes_there_is_one_policy() -> None:
    plan = plan_checks(settings_of({"check": "secrets"}))

    assert plan.policy_of(CALLERS.get)(make_call()) == plan.policy


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"check": "pii", "types": ["x"]}, r"validators.output\[0\].types: 'x' is not known"),
        (
            {"check": "secrets", "only_for": {"kinds": ["x"]}},
            r"\[0\].only_for.kinds: 'x' is not known",
        ),
        ({"check": "urls", "deny": ["http://x"]}, r"validators.output\[0\].deny: 'http://x' is no domain"),
        ({"check": "regex", "patterns": [r"(a)\1"]}, r"validators.output\[0\].patterns: "),
    ],
)
def test_a_wrong_check_is_refused_at_start_by_its_path(row: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_checks(settings_of(row))


def test_a_judge_needs_a_model_and_kinds_that_there_are() -> None:
    judge = {"name": "rude", "model": "echo", "question": "Is it rude?"}
    models = [{"id": "echo", "backends": [{"type": "echo"}]}]

    check_rules(Settings.model_validate({"models": models, "validators": {"judge": [judge]}}))
    with pytest.raises(SettingsError, match=r"validators.judge\[0\].model: 'echo' is no model here: smollm2"):
        check_rules(Settings.model_validate({"validators": {"judge": [judge]}}))
    with pytest.raises(SettingsError, match=r"validators.judge\[0\].only_for.kinds: 'x' is not known"):
        plan_checks(Settings.model_validate({"validators": {"judge": [{**judge, "only_for": {"kinds": ["x"]}}]}}))


def test_the_header_names_every_check_that_ran() -> None:
    notes = Notes()
    notes.checks += [
        CheckNote("length", "input", "pass", "passed", duration_ms=0.001, version="1"),
        CheckNote("secrets", "input", "rewrite", "rewritten", "it holds what looks like a key", 0.5, "1"),
    ]

    headers = dict(decision_headers(notes, backend=None, now=0.0, cost_is_known=False))

    assert headers[b"x-lamina-checks"] == (
        b'length;at=input;did=passed;v="1";ms=0.001, secrets;at=input;did=rewritten;v="1";ms=0.500'
    )
