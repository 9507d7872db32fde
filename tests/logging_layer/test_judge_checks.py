from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from logging_layer.judge_checks import ChecksDown, JudgeCheck, JudgeChecks

CHECK = JudgeCheck("f", "gpt", num_pairs=700, num_right=690, num_traps=350, num_fooled=4, num_failed=1, checked_at=1.5)


async def test_the_last_check_of_a_judge_is_kept(tmp_path: Path) -> None:
    checks = JudgeChecks(f"sqlite:///{tmp_path}/lamina.db")
    before = await checks.of("f")
    await checks.keep(CHECK)
    await checks.keep(replace(CHECK, num_right=600))

    assert before is None
    assert await checks.of("f") == replace(CHECK, num_right=600)
    assert await checks.of("another") is None
    await checks.aclose()


async def test_a_database_that_is_away_is_said_so() -> None:
    checks = JudgeChecks("postgresql+psycopg2://nobody@127.0.0.1:9/none")

    with pytest.raises(ChecksDown):
        await checks.of("f")
    await checks.aclose()
