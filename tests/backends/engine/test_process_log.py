"""The engine's own log, as whoever collects it reads it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from backends.engine.process_log import JsonLines


def record_of(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("backends.engine.loop", logging.ERROR, __file__, 1, message, arguments, exc_info)


def test_an_event_is_an_object_with_its_name_and_its_trace() -> None:
    told = json.loads(JsonLines().format(record_of("engine.crashed decision=%s", "none", error=ValueError("pool"))))

    assert (told["event"], told["level"], told["logger"]) == ("engine.crashed", "error", "backends.engine.loop")
    assert told["message"] == "engine.crashed decision=none"
    assert told["trace"].endswith("ValueError: pool")
    assert told["at"].endswith("Z")


def test_what_is_no_event_is_a_message() -> None:
    told = json.loads(JsonLines().format(record_of("engine: no such file v1.2")))

    assert "event" not in told
    assert told["message"] == "engine: no such file v1.2"


def test_a_start_that_fails_is_told_as_an_object(tmp_path: Path) -> None:
    words = ["--listen", f"unix://{tmp_path / 'e'}", "--model", str(tmp_path / "no.gguf"), "--name", "m", "--log-json"]

    stdin, lifeline = os.pipe()
    try:
        command = [sys.executable, "-m", "backends.engine", *words]
        done = subprocess.run(command, stdin=stdin, capture_output=True, timeout=240)
    finally:
        os.close(stdin)
        os.close(lifeline)

    told = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 2
    assert (told["level"], "no.gguf" in told["message"]) == ("error", True)
