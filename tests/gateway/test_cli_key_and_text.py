"""What a terminal hands to the commands that ask a gateway: keys and texts that cannot be sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_LAMINA = [sys.executable, "-c", "from gateway.cli import main; main()"]
_NOBODY = ("--url", "http://127.0.0.1:1")
_WRONG_KEYS = ("sk-first-half\nsecond-half", "schlüssel-of-mine", "blank-at-the-end ")


def _run(folder: Path, *arguments: str, text: bytes = b"") -> tuple[int, str]:
    """Return the exit code, and what stands on stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAMINA_")}
    environment = {**clean, "PYTHONPATH": os.getcwd(), "PYTHONUTF8": "1"}
    command = [*_LAMINA, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, input=text, capture_output=True, timeout=240, check=False
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("key", _WRONG_KEYS)
@pytest.mark.parametrize("command", [("chat", "hi", "--model", "echo"), ("cache", "list")], ids=lambda words: words[0])
def test_a_key_that_no_header_can_carry_is_refused_in_one_line_that_does_not_show_it(
    tmp_path: Path, command: tuple[str, ...], key: str
) -> None:
    code, said = _run(tmp_path, *command, *_NOBODY, "--key", key)
    assert code == 1
    assert said.startswith("lamina: the key has characters that no key has")
    assert said.count("\n") == 1
    assert key.split()[0] not in said


def test_a_question_that_is_no_text_is_refused_by_name_and_the_conversation_goes_on(tmp_path: Path) -> None:
    code, said = _run(tmp_path, "chat", "--model", "echo", *_NOBODY, text=b"\xff\xfe hi\n")
    assert code == 1
    assert said.startswith("this question is no UTF-8 text, so it was not sent\n")
    assert said.count("\n") == 2
