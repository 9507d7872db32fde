"""guardrails-ai validators run in their own process, offline, and whatever happens to it has an answer in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestration.core.errors import Blocked, CheckUnavailable
from tests.validators.conftest import ROOT, Worker, start_worker, stop_worker
from tests.validators.scripts import Scripted, answer, make_call, run, run_to_error, said
from validators.check import Context, Outcome, Span, Stage
from validators.guardrails_client import GuardrailsCheck, GuardrailsClient
from validators.input_checks import InputChecks
from validators.output_checks import OutputChecks
from validators.registry import build_checks, parse_specs

KEY = "AKIA" + "IOSFODNN7EXAMPLE"
CONTEXT = Context(Stage.OUTPUT, "choices[0].text")
SECRETS = {"check": "guardrails/secrets-present"}
LENGTH = {"check": "guardrails/valid-length", "max": 10}


def checks_of(client: GuardrailsClient, *rows: dict[str, Any]) -> OutputChecks:
    return OutputChecks(build_checks(parse_specs(rows, stage="output"), stage="output", worker=client))


async def test_the_worker_says_what_it_loads_and_when_it_is_ready(guardrails_worker: Worker) -> None:
    events = [status["event"] for status in guardrails_worker.status]

    assert events == ["progress", "progress", "progress", "ready"]
    assert guardrails_worker.status[-1]["checks"] == ["guardrails/valid-length", "guardrails/secrets-present"]


async def test_valid_length_cuts_and_blocks_but_never_pads(guardrails: GuardrailsClient) -> None:
    longest = GuardrailsCheck("guardrails/valid-length", {"max": 5}, guardrails, timeout_s=60)
    shortest = GuardrailsCheck("guardrails/valid-length", {"min": 5}, guardrails, timeout_s=60)

    assert (await longest.check("12345", CONTEXT)).outcome is Outcome.PASS
    assert (await longest.check("1234567", CONTEXT)).spans == (Span(5, 7, ""),)
    assert (await shortest.check("1234", CONTEXT)).outcome is Outcome.BLOCK


@pytest.mark.parametrize(
    "around", ["{}", "a = '{}'", "x\r\n  b = '{}'\r\ny", "{}\n", "\u00e9t\u00e9 '{}'\n\nend", "'{}'\r"]
)
async def test_a_secret_is_masked_and_nothing_else_is_changed(guardrails: GuardrailsClient, around: str) -> None:
    events = await run(checks_of(guardrails, {**SECRETS, "on_fail": "rewrite"}), Scripted(answer(*around.format(KEY))))

    assert said(events) == around.format("********")


@pytest.mark.parametrize("text", ["x = 1", "", "two\nlines\n", "\r\n", "trailing newline\n"])
async def test_a_text_without_secrets_goes_out_as_it_came(guardrails: GuardrailsClient, text: str) -> None:
    script = answer(*text)

    assert await run(checks_of(guardrails, {**SECRETS, "on_fail": "rewrite"}), Scripted(script)) == script


async def test_a_blocked_secret_is_in_no_message(guardrails: GuardrailsClient) -> None:
    call = make_call()

    seen, error = await run_to_error(checks_of(guardrails, SECRETS), Scripted(answer("key ", KEY)), call)

    assert seen == []
    assert isinstance(error, Blocked)
    assert KEY not in error.message + str(call.notes)
    assert call.notes.checks[0].duration_ms > 0


async def test_inputs_are_checked_by_the_worker_too(guardrails: GuardrailsClient) -> None:
    specs = parse_specs([{**SECRETS, "on_fail": "rewrite"}, LENGTH], stage="input")
    core = Scripted()

    with pytest.raises(Blocked, match="length is out of bounds"):
        await run(InputChecks(build_checks(specs, stage="input", worker=guardrails)), core, make_call(prompt="x" * 11))

    await run(InputChecks(build_checks(specs[:1], stage="input", worker=guardrails)), core, make_call(prompt=KEY))
    assert core.calls[0].request.fields["prompt"] == "********"


async def test_many_texts_at_once_are_not_mixed_up(guardrails: GuardrailsClient) -> None:
    check = GuardrailsCheck("guardrails/secrets-present", {}, guardrails, timeout_s=60)
    texts = [f"{'x' * number} '{KEY}'" if number % 3 else f"fine {number}" for number in range(40)]

    verdicts = await asyncio.gather(*(check.check(text, CONTEXT) for text in texts))

    for number, verdict in enumerate(verdicts):
        expected = (Span(number + 2, number + 2 + len(KEY), "********"),) if number % 3 else ()
        assert verdict.spans == expected


async def test_a_check_that_the_worker_was_not_told_of_is_loaded_when_asked_for(guardrails: GuardrailsClient) -> None:
    verdict = await guardrails.check("guardrails/valid-length", {"max": 3}, "1234", timeout_s=60)

    assert verdict.spans == (Span(3, 4, ""),)


async def test_an_unknown_check_or_option_is_an_error_and_not_a_pass(guardrails: GuardrailsClient) -> None:
    unknown = await guardrails.check("guardrails/no-such", {}, "text", timeout_s=60)
    wrong = await guardrails.check("guardrails/valid-length", {"limit": 3}, "text", timeout_s=60)

    assert (unknown.outcome, wrong.outcome) == (Outcome.ERROR, Outcome.ERROR)


async def test_the_worker_answers_its_health(guardrails: GuardrailsClient, short_folder: Path) -> None:
    absent = GuardrailsClient(short_folder / "absent.sock")

    assert await guardrails.check_health() is None
    assert "unavailable" in str(await absent.check_health())
    await absent.aclose()


@pytest.mark.parametrize(
    ("name", "options", "good", "bad"),
    [
        ("contains-string", {"substring": "kind regards"}, "with kind regards", "bye"),
        ("ends-with", {"end": "."}, "It is so.", "It is so"),
        ("has-url", {}, "see https://example.com/a", "see there"),
        ("mentions-drugs", {}, "take a walk", "take some cocaine"),
        ("one-line", {}, "one", "one\ntwo"),
        ("reading-time", {"reading_time": 0.1}, "short", "long words " * 200),
        ("valid-choices", {"choices": ["yes", "no"]}, "yes", "maybe"),
    ],
)
async def test_a_packaged_validator_tells_good_from_bad_without_a_network(
    guardrails: GuardrailsClient, guardrails_worker: Worker, name: str, options: dict[str, Any], good: str, bad: str
) -> None:
    check = GuardrailsCheck(f"guardrails/{name}", options, guardrails, timeout_s=60)

    assert (await check.check(good, CONTEXT)).outcome is Outcome.PASS
    refused = await check.check(bad, CONTEXT)
    assert (refused.outcome, refused.spans) == (Outcome.BLOCK, ())
    assert guardrails_worker.foreign_hosts.read_text() == ""


async def test_no_foreign_host_is_looked_up(guardrails: GuardrailsClient, guardrails_worker: Worker) -> None:
    await guardrails.check("guardrails/secrets-present", {}, KEY, timeout_s=60)
    await guardrails.check("guardrails/valid-length", {"max": 3}, KEY, timeout_s=60)

    assert guardrails_worker.foreign_hosts.with_suffix(".watched").exists()
    assert guardrails_worker.foreign_hosts.read_text() == ""
    assert guardrails_worker.process.poll() is None


@pytest.mark.parametrize("fail", ["open", "closed"])
@pytest.mark.parametrize("state", ["down", "slow"])
async def test_a_worker_down_or_slow_is_answered_in_time_by_the_policy(
    fail: str, state: str, silent_socket: Path, short_folder: Path
) -> None:
    client = GuardrailsClient(silent_socket if state == "slow" else short_folder / "absent.sock")
    layer = checks_of(client, {**SECRETS, "fail": fail, "timeout_s": 0.05})
    call = make_call()

    seen, error = await run_to_error(layer, Scripted(answer("fine")), call)

    await client.aclose()
    assert call.notes.checks[0].verdict == "error"
    assert str(call.notes.checks[0].reason).startswith("timeout" if state == "slow" else "unavailable")
    if fail == "open":
        assert said(seen) == "fine"
        assert call.notes.degraded == ["check guardrails/secrets-present (output) did not run"]
    else:
        assert seen == []
        assert isinstance(error, CheckUnavailable)


@pytest.mark.parametrize(
    "checks", ['[{"check": "guardrails/none"}]', '[{"check": "guardrails/valid-length", "options": {"a": 1}}]']
)
def test_a_worker_told_of_wrong_checks_ends_with_one_line(short_folder: Path, checks: str) -> None:
    command = [sys.executable, "-m", "validators.worker", "--socket", str(short_folder / "g.sock"), "--checks", checks]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        said_last = process.stderr.read()

    assert process.returncode == 2
    assert said_last.count("\n") == 1
    assert "known" in said_last


def test_a_worker_ends_when_its_supervisor_is_gone(short_folder: Path) -> None:
    worker = start_worker(short_folder / "guard-leash", [])

    assert worker.status[-1]["event"] == "ready"
    assert stop_worker(worker) == 0


def test_a_worker_that_holds_too_much_memory_ends_to_be_started_anew(short_folder: Path) -> None:
    command = [sys.executable, "-m", "validators.worker", "--socket", str(short_folder / "m.sock")]

    with subprocess.Popen(
        [*command, "--max-memory-mb", "1"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(timeout=60) == 70

    assert "the worker ends" in said
