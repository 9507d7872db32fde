from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache.judge.desk import Pair, Verdict
from cache.judge.opinion import Judge
from cache.partition import Question
from gateway.judge_check import SHIPPED, LabelledPair, examine, read_pairs
from gateway.judging import JudgeStanding, VerdictBook
from gateway.label_watch import lesson_of
from gateway.metrics import Metrics
from gateway.refusals import Refused, SettingsError
from gateway.settings import Settings
from gateway.settings.rules import check_rules
from logging_layer.judge_checks import JudgeCheck, JudgeChecks
from logging_layer.labels import LabelBook, LabelSource
from orchestration.core import Call, Delta, Event, Finish, Start

PASSED = JudgeCheck("f", "m", num_pairs=200, num_right=198, num_traps=90, num_fooled=1, num_failed=0, checked_at=1.0)
PAIR = Pair("c1", Question("p", "asked?"), "e", 0.9, is_hit=False)
VALUES = (0.9, 1.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/lamina.db"


@pytest.fixture
async def checks(url: str) -> AsyncIterator[JudgeChecks]:
    made = JudgeChecks(url)
    yield made
    await made.aclose()


async def test_a_judge_has_a_say_once_the_database_says_that_it_passed(url: str, checks: JudgeChecks) -> None:
    standing = JudgeStanding(JudgeChecks(url), fingerprint="f", model="m")
    said = [(standing.is_in_force, standing.why_inert)]
    await standing.look()
    said.append((standing.is_in_force, standing.why_inert))
    await checks.keep(replace(PASSED, num_right=150))
    await standing.look()
    said.append((standing.is_in_force, standing.why_inert))
    await checks.keep(PASSED)
    await standing.look()

    assert [is_in_force for is_in_force, _ in said] == [False] * 3
    assert [why for _, why in said] == [
        "whether it was checked is not known yet",
        "it was not checked as it is now; run: lamina judge check",
        "it got 75.0% of 200 pairs right and refused 98.9% of 90 traps; 95% of both are needed",
    ]
    assert standing.is_in_force
    assert standing.view()["check"]["num_pairs"] == 200
    await standing.aclose()


async def test_another_judges_pass_is_not_this_ones(url: str, checks: JudgeChecks) -> None:
    await checks.keep(PASSED)
    standing = JudgeStanding(JudgeChecks(url), fingerprint="g", model="m")
    await standing.look()

    assert not standing.is_in_force
    await standing.aclose()


async def test_a_judge_keeps_its_say_while_the_database_is_away(url: str, checks: JudgeChecks, tmp_path: Path) -> None:
    await checks.keep(PASSED)
    standing = JudgeStanding(JudgeChecks(url), fingerprint="f", model="m")
    await standing.look()
    for file in tmp_path.glob("lamina.db*"):
        file.write_bytes(b"no database")
    await standing.look()

    assert standing.is_in_force
    await standing.aclose()


@pytest.mark.parametrize(
    ("verdict", "source"),
    [
        (Verdict(PAIR, is_correct=True, values=VALUES, cost_usd=0.001), LabelSource.NEAR_MISS),
        (Verdict(PAIR, is_correct=False, values=VALUES, cost_usd=None), LabelSource.NEAR_MISS),
        (Verdict(replace(PAIR, is_hit=True), is_correct=False, values=None, cost_usd=None), LabelSource.JUDGE),
        (Verdict(PAIR, is_correct=True, values=None, cost_usd=None), None),
    ],
)
async def test_a_verdict_is_a_label_that_a_policy_can_learn_from(
    url: str, verdict: Verdict, source: LabelSource | None
) -> None:
    labels = LabelBook(url)
    await VerdictBook(labels, metrics=Metrics(()).cache).keep(verdict)

    kept = await labels.since(0.0)

    assert [(label.source, label.is_correct, label.similarity) for label in kept] == (
        [(source, verdict.is_correct, 0.9)] if source is not None else []
    )
    lessons = [lesson for label in kept if (lesson := lesson_of(label)) is not None]
    assert [(one.entry, one.features.values()) for one in lessons] == ([("e", VALUES)] if verdict.values else [])
    await labels.aclose()


async def test_a_check_counts_what_is_right_what_was_fooled_and_what_failed() -> None:
    words = iter(["SAME", "SAME", "DIFFERENT", "I cannot say"])

    async def model(_call: Call, /) -> AsyncIterator[Event]:
        yield Start("m", "b")
        yield Delta(text=next(words))
        yield Finish()

    judge = Judge(model, model="m", route="r", new_id=lambda: "j")  # type: ignore[arg-type]  # a generator all the same
    rows = [LabelledPair("a", "b", same) for same in (True, False, False, True)]

    check = await examine(judge, rows, model="m")

    assert (check.num_pairs, check.num_right, check.num_traps, check.num_fooled, check.num_failed) == (4, 2, 2, 1, 1)


def test_the_shipped_pairs_are_there_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"a": "x", "b": "y", "same_answer": True}) + "\n{}\n")

    assert len(read_pairs(SHIPPED)) == 704
    with pytest.raises(Refused, match=r"rows\.jsonl:2"):
        read_pairs(rows)


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("tiny", "'tiny' is no model with backends elsewhere; those: big"),
        ("nobody", "'nobody' is no model with backends elsewhere; those: big"),
        ("big", None),
    ],
)
def test_the_built_in_model_is_never_a_judge(judge: str, message: str | None) -> None:
    settings = Settings.model_validate(
        {
            "models": [
                {"id": "tiny", "backends": [{"type": "engine"}]},
                {"id": "big", "backends": [{"type": "openai_compatible", "base_url": "http://127.0.0.1:9/v1"}]},
            ],
            "cache": {"semantic": {"judge": {"model": judge}}},
        }
    )
    if message is None:
        check_rules(settings)
    else:
        with pytest.raises(SettingsError, match=message):
            check_rules(settings)
