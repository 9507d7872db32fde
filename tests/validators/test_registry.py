"""Settings become rules, and what is wrong with them is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from validators import guardrails_table, registry
from validators.banned_words import BannedWords
from validators.guardrails_client import GuardrailsClient
from validators.guardrails_table import KNOWN, REFUSED
from validators.policy import Fail, Mode, OnFail
from validators.registry import CheckSpec, build_checks, guardrails_specs, parse_specs, policy_hash

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "guarded.yaml"
WORDS = {"check": "banned_words", "words": ["a"]}
CLIENT = GuardrailsClient(Path("/nowhere/guard.sock"))


@pytest.mark.parametrize(
    ("stage", "row", "message"),
    [
        ("output", {"on_fail": "block"}, "validators.output[0].check: must name a check; known: banned_words"),
        (
            "output",
            {"check": "nope"},
            "validators.output[0].check: 'nope' is not known; known: banned_words, competitors, distribution, ",
        ),
        (
            "output",
            {"check": "guardrails/nope"},
            "known guardrails-ai checks: guardrails/contains-string, guardrails/ends-with, ",
        ),
        ("output", {**WORDS, "mode": "chunk"}, "validators.output[0].mode: must be one of window, hold, observe"),
        ("output", {"check": "guardrails/ends-with"}, "validators.output[0].end: guardrails/ends-with needs it"),
        ("output", {"check": "json", "mode": "window"}, "validators.output[0].mode: json has no longest match"),
        (
            "output",
            {"check": "length", "max_chars": 9, "mode": "window"},
            "validators.output[0].mode: length has no longest",
        ),
        (
            "output",
            {"check": "guardrails/valid-length", "mode": "window"},
            "validators.output[0].mode: guardrails/valid-length",
        ),
        ("input", {**WORDS, "mode": "hold"}, "validators.input[0].mode: hold is for streams"),
        ("input", {**WORDS, "on_fail": "reask"}, "validators.input[0].on_fail: a request cannot be asked for again"),
        ("output", {**WORDS, "on_fail": "reask", "mode": "window"}, "validators.output[0].mode: an answer that may be"),
        (
            "output",
            {**WORDS, "on_fail": "reask", "reasks": 4},
            "validators.output[0].reasks: must be from 1 to 3, not 4",
        ),
        ("output", {**WORDS, "deadline_ms": 0}, "validators.output[0].deadline_ms: must be above 0"),
        ("output", {**WORDS, "breaker_after": 0}, "validators.output[0].breaker_after: must be at least 1"),
        (
            "output",
            {**WORDS, "only_for": {"key": ["a"]}},
            "validators.output[0].only_for.key: no such option here; known: keys",
        ),
        (
            "output",
            {**WORDS, "only_for": {"kinds": ["a"]}},
            "validators.output[0].only_for.kinds: 'a' is not known; known: chat",
        ),
        (
            "output",
            {**WORDS, "on_fail": "fix"},
            "validators.output[0].on_fail: must be one of block, rewrite, flag, reask, not 'fix'",
        ),
        ("output", {**WORDS, "fail": "maybe"}, "validators.output[0].fail: must be one of open, closed"),
        (
            "output",
            {"check": "json", "on_fail": "rewrite"},
            "validators.output[0].on_fail: json cannot rewrite the output",
        ),
        (
            "input",
            {"check": "length", "max_chars": 1, "on_fail": "rewrite"},
            "validators.input[0].on_fail: length cannot rewrite",
        ),
        ("input", {"check": "json"}, "validators.input[0].check: json is a check of the output"),
        ("input", {"check": "length"}, "validators.input[0].max_chars: length needs"),
        (
            "input",
            {"check": "length", "max_chars": "9"},
            "validators.input[0].max_chars: must be a whole number, not '9'",
        ),
        ("input", {"check": "length", "max_chars": True}, "validators.input[0].max_chars: must be a whole number"),
        ("input", {"check": "length", "max_chars": 2, "min_chars": 3}, "validators.input[0].max_chars: 2 is below 3"),
        (
            "input",
            {"check": "length", "max_char": 2},
            "validators.input[0].max_char: no such option here; known: max_chars, min_chars",
        ),
        ("input", {"check": "banned_words"}, "validators.input[0].words: must be a list of words"),
        ("input", {"check": "banned_words", "words": ["a", " "]}, "validators.input[0].words: must be a list of words"),
        ("input", {"check": "banned_words", "words": "abc"}, "validators.input[0].words: must be a list, not 'abc'"),
        ("input", {"check": "banned_words", "words": [1]}, "validators.input[0].words: must be a list of texts"),
        ("input", {**WORDS, "replacement": "an A"}, "validators.input[0].replacement: must not hold a banned word"),
        (
            "output",
            {"check": "guardrails/valid-length", "max": "x"},
            "validators.output[0].max: must be a whole number",
        ),
        (
            "output",
            {"check": "guardrails/valid-length", "timeout_s": 0},
            "validators.output[0].timeout_s: must be above 0",
        ),
        (
            "output",
            {"check": "guardrails/secrets-present", "max": 1},
            "validators.output[0].max: no such option here; known: none",
        ),
    ],
)
def test_a_wrong_setting_is_named(stage: Any, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        build_checks(parse_specs([row], stage=stage), stage=stage, worker=CLIENT)

    assert message in str(caught.value)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_validator_that_does_not_serve_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=r"validators.output\[0\].check: .* does not serve here: its? "):
        build_checks([CheckSpec(name)], stage="output", worker=CLIENT)

    assert name not in KNOWN


def test_a_guardrails_check_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(KNOWN["guardrails/valid-length"], package="guardrails-ai-of-nobody")
    monkeypatch.setattr(guardrails_table, "KNOWN", {"guardrails/valid-length": absent})

    with pytest.raises(ValueError, match="install guardrails-ai-of-nobody"):
        build_checks([CheckSpec("guardrails/valid-length")], stage="output", worker=CLIENT)


def test_a_guardrails_check_without_a_worker_is_refused() -> None:
    with pytest.raises(ValueError, match=r"validators.output\[0\].check: .* needs the guardrails worker"):
        build_checks([CheckSpec("guardrails/secrets-present")], stage="output", worker=None)


@pytest.mark.parametrize(
    ("row", "mode"),
    [
        (WORDS, Mode.WINDOW),
        ({"check": "secrets"}, Mode.WINDOW),
        ({"check": "json"}, Mode.HOLD),
        ({"check": "guardrails/secrets-present"}, Mode.HOLD),
        ({**WORDS, "on_fail": "flag"}, Mode.OBSERVE),
        ({**WORDS, "mode": "hold"}, Mode.HOLD),
    ],
)
def test_the_mode_left_out_is_the_lightest_that_keeps_its_promise(row: dict[str, Any], mode: Mode) -> None:
    (rule,) = build_checks(parse_specs([row], stage="output"), stage="output", worker=CLIENT)

    assert rule.mode is mode
    assert (rule.on_fail, rule.fail) == (OnFail(row.get("on_fail", "block")), Fail.CLOSED)


def test_the_hash_of_the_policy_changes_with_everything_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CheckSpec("banned_words", options={"words": ["a"]})
    variants = [
        policy_hash([spec], []),
        policy_hash([], [spec]),
        policy_hash([], []),
        policy_hash([], [replace(spec, options={"words": ["b"]})]),
        policy_hash([], [replace(spec, on_fail="rewrite")]),
        policy_hash([], [replace(spec, mode="hold")]),
        policy_hash([], [replace(spec, fail="open")]),
        policy_hash([], [replace(spec, only_for={"keys": ["a"]})]),
        policy_hash([], [replace(spec, reasks=2)]),
        policy_hash([], [CheckSpec("guardrails/secrets-present")]),
    ]
    assert policy_hash([], [spec]) == variants[1]
    monkeypatch.setattr(BannedWords, "version", "next")
    variants.append(policy_hash([], [spec]))
    monkeypatch.setattr(registry, "NORMALISATION", "next")
    variants.append(policy_hash([], [spec]))

    assert len(set(variants)) == len(variants)


def test_the_worker_is_told_of_each_guardrails_check_once() -> None:
    rows: list[dict[str, Any]] = [
        {"check": "guardrails/valid-length", "max": 9, "timeout_s": 1},
        {"check": "secrets"},
    ]
    specs = parse_specs(rows, stage="input")

    assert guardrails_specs(specs, specs) == [{"check": "guardrails/valid-length", "options": {"max": 9}}]
    assert guardrails_specs(specs[1:], ()) == []


def test_the_example_builds_and_turns_every_kind_of_check_on() -> None:
    settings = yaml.safe_load(EXAMPLE.read_text())["validators"]
    inputs = parse_specs(settings["input"], stage="input")
    outputs = parse_specs(settings["output"], stage="output")

    build_checks(inputs, stage="input", worker=CLIENT)
    build_checks(outputs, stage="output", worker=CLIENT)

    named = {spec.check for spec in (*inputs, *outputs)}
    assert named == {
        "length",
        "secrets",
        "banned_words",
        "json",
        "guardrails/valid-length",
        "guardrails/secrets-present",
    }
