from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

CONFIG = "models: [{id: small, backends: [{type: echo}]}]\nlimits: {teams: {lab: {budget_usd: 9, window: 30d}}}\n"


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "lamina.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in os.environ:
        if name.startswith("LAMINA_"):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["lamina", "keys", *arguments])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # typer's own, when it is imported
            from gateway.cli import main

            with pytest.raises(SystemExit) as ended:
                main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


def test_a_key_is_made_shown_once_listed_and_revoked(keys: Run) -> None:
    made = keys(
        "create", "ci", "--team", "lab", "--model", "small", "--rpm", "5", "--budget-usd", "2", "--expires", "9d"
    )
    secret = made.stdout.strip()

    listed = keys("list").stdout
    revoked = keys("revoke", "ci")
    afterwards = keys("list").stdout

    assert secret.startswith("sk-lamina-")
    assert secret not in listed
    assert [word for word in ("ci", secret[-4:], "lab", "small", "rpm 5, 2 USD/1d", "live") if word not in listed] == []
    assert "is revoked" in revoked.stdout
    assert "revoked" in afterwards


def test_spend_names_each_key_and_team_with_its_budget(keys: Run) -> None:
    keys("create", "ci", "--team", "lab", "--budget-usd", "2")

    shown = keys("spend").stdout

    assert [word for word in ("ci (key_", "team lab", "0.000000", "30d", "9") if word not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "a", "--model", "large"], ["'large'", "small"]),
        (["create", "a", "--team", "none"], ["'none'", "lab"]),
        (["create", "a", "--window", "2d"], ["2d", "1h, 1d, 30d"]),
        (["create", "a", "--expires", "soon"], ["soon", "90d"]),
        (["create", " "], ["name"]),
        (["revoke", "nobody"], ["nobody"]),
    ],
)
def test_what_cannot_be_done_is_one_line(keys: Run, arguments: list[str], words: list[str]) -> None:
    done = keys(*arguments)

    assert done.returncode == 1
    assert done.stderr.startswith("lamina: ")
    assert done.stderr.count("\n") == 1
    assert [word for word in words if word not in done.stderr] == []


def test_a_database_that_is_away_is_one_line_without_its_password(keys: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_DATABASE__URL", "postgresql+psycopg2://u:hunter2@127.0.0.1:9/x")

    done = keys("list")

    assert done.returncode == 1
    assert "database.url" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
