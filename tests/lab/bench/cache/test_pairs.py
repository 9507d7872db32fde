from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cache.guard import load_guard
from lab.bench.cache.pairs import (
    SHIPPED,
    Asked,
    Pair,
    Share,
    UnreadablePairs,
    asked_of,
    at_bar,
    at_budget,
    by_category,
    read_pairs,
)
from lab.bench.cache.report import measure_pairs, show
from lab.bench.cache.rules import contestants

PAIRS = [Pair(f"a{n}", f"b{n}", same_answer=n % 2 == 0, category="even" if n % 2 == 0 else "odd") for n in range(100)]


def test_the_bar_lets_no_more_traps_pass_than_the_budget() -> None:
    scores = [1.0 - n / 100 for n in range(100)]  # every other one is a trap

    assert at_budget(PAIRS, scores, 0.1).wrong.count == 5
    assert at_budget(PAIRS, scores, 0.1).served.count == 6
    assert at_budget(PAIRS, scores, 0.01).wrong.count == 0


def test_what_a_rule_never_serves_is_served_at_no_bar() -> None:
    scores = [None if pair.same_answer else 0.5 for pair in PAIRS]

    assert at_budget(PAIRS, scores, 1.0).served.count == 0
    assert at_bar(PAIRS, scores, -1.0).wrong.count == 50


def test_equal_scores_are_served_together() -> None:
    assert at_budget(PAIRS, [0.5] * 100, 0.1).served.count == 0


def test_categories_are_counted_apart() -> None:
    shares = by_category(PAIRS, [float(n < 10) for n in range(100)], 0.5)

    assert shares == {"same: even": Share(5, 50), "trap: odd": Share(5, 50)}


def test_wilsons_interval_is_the_published_one() -> None:
    low, high = Share(5, 50).interval

    assert low == pytest.approx(0.0435, abs=1e-4)
    assert high == pytest.approx(0.2136, abs=1e-4)
    assert Share(0, 0).interval == (0.0, 1.0)


def test_no_rule_sees_labels_or_categories() -> None:
    pairs = read_pairs(SHIPPED / "pairs.jsonl", part="dev")[:60]
    shuffled = list(pairs)
    random.Random(1).shuffle(shuffled)
    mislabelled = [
        Pair(pair.a, pair.b, other.same_answer, other.category) for pair, other in zip(pairs, shuffled, strict=True)
    ]
    vectors = {text: np.eye(8, dtype=np.float32)[len(text) % 8] for pair in pairs for text in (pair.a, pair.b)}

    for contestant in contestants(load_guard()).values():
        scores = [contestant.rule(asked) for asked in asked_of(pairs, vectors)]
        assert scores == [contestant.rule(asked) for asked in asked_of(mislabelled, vectors)]


def test_the_rivals_bars_are_those_cosines_that_their_code_means() -> None:
    rules = contestants(load_guard())

    for name, cosine in (("gptcache", 0.6), ("redisvl", 0.9)):
        at, below = (rules[name].rule(Asked("x", "y", cosine + less)) for less in (1e-6, -1e-6))
        assert at is not None
        assert below is not None
        assert below < rules[name].default_bar <= at


def test_the_shipped_parts_share_no_text() -> None:
    texts = [
        {text for pair in read_pairs(SHIPPED / "pairs.jsonl", part=part) for text in (pair.a, pair.b)}
        for part in ("dev", "held_out")
    ]

    assert not texts[0] & texts[1]


@pytest.mark.parametrize("line", ["no json", '{"a": "x", "b": "y"}', '{"a": "x", "b": "y", "same_answer": 1}'])
def test_a_row_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{{"a": "x", "b": "y", "same_answer": true}}\n{line}\n')

    with pytest.raises(UnreadablePairs, match=r"pairs.jsonl:2: a row is"):
        read_pairs(path)


def test_the_report_holds_the_figures(tmp_path: Path, encoder_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"a": "What is the capital of France?", "b": "What's the capital of France?", "same_answer": True},
        {"a": "What is the capital of France?", "b": "What is the capital of Germany?", "same_answer": False},
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))

    report = measure_pairs(tmp_path / "pairs.jsonl", part="", encoder=encoder_folder, kept_in=tmp_path)
    show(report)

    assert set(report["served_at_trap_budget"]) == {"0.01", "0.02", "0.05", "0.1"}
    assert report["served_at_trap_budget"]["0.01"] == 1.0
    assert report["default"] == {"served": 1.0, "wrong": 0.0}
    assert report["guard"]["reasons"] == {"entity": {"same": 0, "traps": 1}}
    assert "calibrated" in capsys.readouterr().out
    json.dumps(report)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from lab.bench.app import app; app()", "cache", "--pairs", str(tmp_path / "none")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert str(tmp_path / "none") in done.stderr
    assert done.stderr.count("\n") == 1
