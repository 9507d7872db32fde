"""The engine's own log: a line of text or a JSON object an event (a copy of the gateway's shape: it stands alone).

The engine knows token ids and no texts, so that an exception's words are written as they are.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time

_TEXT = "%(asctime)s %(levelname)s %(message)s"
_EVENT = re.compile(r"([a-z_]+(?:\.[a-z_]+)+)(?=[ :]|$)")


def start_log(*, is_json: bool) -> None:
    """Write this process's log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if is_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class JsonLines(logging.Formatter):
    """Write an object a line: `at` (UTC), `level`, `logger`, `message`, and `event` and `trace` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one event."""
        message = record.getMessage()
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        event = _EVENT.match(message)
        if event is not None:
            told["event"] = event[1]
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)
