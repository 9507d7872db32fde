from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest


def write_stream(path: Path, *, hits: int, wrong: int, similarity: float) -> Path:
    """Write 1,000 requests of which `hits` have a neighbour at `similarity`, `wrong` of them a wrong one."""
    rows = [{"similarity": similarity if n < hits else 0.3, "correct": n >= wrong} for n in range(1000)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def tune(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `lamina tune` in a folder."""
    return subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", "tune", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_worked_example_is_written_as_json(tmp_path: Path) -> None:
    low = write_stream(tmp_path / "low.jsonl", hits=970, wrong=57, similarity=0.96)
    high = write_stream(tmp_path / "high.jsonl", hits=961, wrong=0, similarity=0.995)
    prices = ("--cost-call", "0.002", "--cost-wrong", "0.05", "--no-mlflow", "--json", tmp_path / "out.json")

    tune(tmp_path, "--scored", low, "--thresholds", "0.95", *prices)
    first = json.loads((tmp_path / "out.json").read_text())["thresholds"][0]
    tune(tmp_path, "--scored", high, "--thresholds", "0.95,0.99", *prices)
    second = json.loads((tmp_path / "out.json").read_text())["thresholds"][1]

    expected = {
        "threshold": 0.95,
        "hits": 970.0,
        "wrong": 57.0,
        "saved_usd": 1.94,
        "lost_usd": 2.85,
        "value_usd": -0.91,
    }
    assert {key: first[key] for key in expected} == expected
    assert (second["threshold"], second["saved_usd"], second["lost_usd"]) == (0.99, 1.922, 0.0)


def test_another_price_of_a_wrong_answer_moves_the_bar(tmp_path: Path) -> None:
    rows = [{"similarity": 0.9 + n / 10_000, "correct": n % 20 > 2 or n > 800} for n in range(1000)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = []
    for cost in ("0.004", "0.05"):
        tune(tmp_path, "--scored", "rows.jsonl", "--cost-wrong", cost, "--no-mlflow", "--json", "out.json")
        found.append(json.loads((tmp_path / "out.json").read_text())["recommended"])

    assert found[0] < found[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--thresholds", "0.9;0.95"), "expected cosines parted by commas"),
        (("--thresholds", "95"), "a cosine is between -1 and 1"),
        (("--cost-wrong", "0"), "--cost-wrong"),
        (("--scored", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("--json", "nowhere/out.json"), "--json nowhere/out.json cannot be written: No such file or directory"),
        (("--page", "."), "--page . cannot be written: Is a directory"),
        (("--reason", "spring"), "add --apply"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, arguments: tuple[str, str], said: str) -> None:
    rows = write_stream(tmp_path / "rows.jsonl", hits=9, wrong=1, similarity=0.96)

    done = tune(tmp_path, "--scored", rows, "--no-mlflow", *arguments)

    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_without_an_mlflow_it_says_how_to_get_one(tmp_path: Path) -> None:
    rows = write_stream(tmp_path / "rows.jsonl", hits=9, wrong=1, similarity=0.96)

    assert "lamina serve --mlflow" in tune(tmp_path, "--scored", rows).stderr


def test_an_applied_bar_is_in_the_history_with_who_and_why(tmp_path: Path) -> None:
    rows = write_stream(tmp_path / "rows.jsonl", hits=961, wrong=0, similarity=0.995)

    done = tune(tmp_path, "--scored", rows, "--thresholds", "0.9,0.99", "--no-mlflow", "--apply", "--reason", "spring")

    assert "Applied bar 0.99 as version 1" in done.stdout
    with contextlib.closing(sqlite3.connect(tmp_path / ".lamina" / "lamina.db")) as database:
        kept = database.execute("select version, policy, threshold, reason, applied_by from cache_policies").fetchall()
    assert [row[:4] for row in kept] == [(1, "static", 0.99, "spring")]
    assert kept[0][4]


def test_nothing_is_applied_where_no_bar_is_worth_it(tmp_path: Path) -> None:
    rows = write_stream(tmp_path / "rows.jsonl", hits=970, wrong=57, similarity=0.96)

    done = tune(tmp_path, "--scored", rows, "--thresholds", "0.95", "--no-mlflow", "--apply")

    assert done.returncode != 0
    assert "no bar is recommended" in done.stderr
