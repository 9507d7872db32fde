"""How a process of ours lives under the supervisor: stdin is its lifeline, stdout its status, stderr its log.

The supervisor holds the other end of stdin and never writes to it. When the supervisor dies, however it dies,
the pipe closes and the child ends. A child reports by JSON lines on stdout: `{"event": "progress", "what": ...,
"done": ..., "total": ...}` while it loads, and `{"event": "ready", ...}` once it answers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def follow_supervisor(grace_s: float = 10.0) -> None:
    """Send this process SIGTERM when stdin closes, and end it after `grace_s` if it is still there."""
    threading.Thread(target=_wait_for_end, args=(grace_s,), name="lifeline", daemon=True).start()


def report(event: str, **fields: Any) -> None:
    """Tell the supervisor something, as one JSON line on stdout."""
    try:
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        pass  # the supervisor is gone; the lifeline is about to say so


def _wait_for_end(grace_s: float) -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(grace_s)
    os._exit(1)
