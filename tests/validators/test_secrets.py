"""Secrets of every known shape are found, whole, and ordinary text is left alone."""

from __future__ import annotations

import asyncio
import re._parser as parser  # type: ignore[import-not-found]
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.core import Delta, Event, Finish, Start
from tests.validators.scripts import Scripted, answer, make_call, output, rules, run, said
from validators.check import Context, Stage
from validators.input_checks import InputChecks
from validators.secrets import LONGEST_TAIL, SHAPES, TAIL, Secrets, Shape

ALNUM = "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0dF3gH6jK9mN2pQ5sT8vW1yZ4aB7cD0eF3gH6jK9mN2pQ5"
HEX = "0123456789abcdef" * 4
SECRETS = {
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "github": "ghp_" + ALNUM[:36],
    "github fine": "github_pat_" + ALNUM[:60],
    "gitlab": "glpat-" + ALNUM[:20],
    "slack": "xoxb-123456789012-" + ALNUM[:24],
    "model": "sk-" + ALNUM[:48],
    "model project": "sk-proj-" + ALNUM[:64],
    "model ant": "sk-ant-api03-" + ALNUM[:64],
    "stripe": "sk_live_" + ALNUM[:24],
    "google": "AIza" + ALNUM[:35],
    "sendgrid": "SG." + ALNUM[:22] + "." + ALNUM[:43],
    "twilio": "SK" + HEX[:32],
    "telegram": "1234567890:AA" + ALNUM[:33],
    "ocean": "dop_v1_" + HEX,
    "databricks": "dapi" + HEX[:32],
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + ALNUM * 3 + "." + ALNUM[:43],
    "long": "sk-" + ALNUM * 20,
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0123\n\n"
    + "\n".join([ALNUM[:64]] * 25)
    + "\nAb3=\n-----END RSA PRIVATE KEY-----",
    "pem in code": "-----BEGIN PRIVATE KEY-----\\n" + ALNUM[:64] + "\\n" + ALNUM[:9] + "==\\n-----END PRIVATE KEY-----",
}
INNOCENT = [
    "import os.path; self.name = 'task-management-of-the-risk-assessment'",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b, version 1.2.3.4, 2026-11-29T15:39:00Z",
    "f47ac10b-58cc-4372-a567-0e02b2c3d479 and a desk-lamp, disk-usage, AKIA is a word, sk- too",
    "-----BEGIN CERTIFICATE----- is public",
    "https://example.com/a/very/long/path/that/has/no/key/in/it?page=2&sort=asc",
]


async def masked(text: str) -> str:
    core = Scripted()
    await run(InputChecks(rules("input", {"check": "secrets", "on_fail": "rewrite"})), core, make_call(prompt=text))
    return str(core.calls[0].request.fields["prompt"])


@pytest.mark.parametrize("name", SECRETS)
async def test_a_secret_is_replaced_whole(name: str) -> None:
    assert await masked(f"use {SECRETS[name]} here") == "use [secret removed] here"


@pytest.mark.parametrize("text", INNOCENT)
async def test_ordinary_text_is_left_alone(text: str) -> None:
    assert await masked(text) == text


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_match_is_longer_than_its_shape_says(shape: Shape) -> None:
    assert parser.parse(shape.expression).getwidth()[1] <= shape.longest
    assert parser.parse(TAIL).getwidth()[1] <= LONGEST_TAIL


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from([*SECRETS.values(), " ", ". ", "word ", "sk-", "\n"]), max_size=5), st.data())
def test_a_streamed_secret_never_goes_out_in_part(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    size = data.draw(st.sampled_from([1, 3, 7, 40, 1000]))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]

    streamed = asyncio.run(run(output({"check": "secrets", "on_fail": "rewrite"}), Scripted(answer(*pieces))))

    assert said(streamed) == asyncio.run(masked(text))


async def test_a_secret_split_over_two_events_does_not_leak_its_first_half() -> None:
    secret = SECRETS["github"]
    script: list[Event | Exception] = [Start("m", "b")]
    script += [Delta(text="your key is " + secret[:20]), Delta(text=secret[20:] + " bye"), Finish()]

    events = await run(output({"check": "secrets", "on_fail": "rewrite"}), Scripted(script))

    assert said(events) == "your key is [secret removed] bye"


@pytest.mark.parametrize("text", ["a" * 200_000, "sk-" * 60_000, "eyJhbGciOi" * 20_000, "-----BEGIN " * 20_000])
async def test_a_text_made_to_make_patterns_slow_is_read_in_linear_time(text: str) -> None:
    context = Context(Stage.INPUT, "prompt")
    begun = time.thread_time()
    await Secrets().check(text[: len(text) // 10], context)
    short = time.thread_time() - begun
    begun = time.thread_time()
    await Secrets().check(text, context)

    assert time.thread_time() - begun < 100 * max(short, 0.001)  # ten times the text; a quadratic one takes 100
