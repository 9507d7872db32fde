"""The engine as a child process: stdin is its lifeline, stdout its status (a copy, so that it stands alone)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading


def follow_supervisor(grace_s: float = 10.0) -> None:
    """Send this process SIGTERM when stdin closes, and end it after `grace_s` if it is still there."""
    threading.Thread(target=_wait_for_end, args=(grace_s,), name="lifeline", daemon=True).start()


def report(event: str, **fields: object) -> None:
    """Tell whoever started us something, as one JSON line on stdout."""
    try:
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        pass  # nobody listens any more, and the lifeline is about to say so


def _wait_for_end(grace_s: float) -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(grace_s)
    os._exit(1)
