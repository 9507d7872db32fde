"""A process's own log: one event a line, as text or JSON, and never the words of an exception that nobody checked."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_EVENT = re.compile(r"([a-z_]+(?:\.[a-z_]+)+)((?: [a-z_]+=[^\s:]+)*)(?:: |$)?")
_PAIR = re.compile(r"([a-z_]+)=([^\s:]+)")
Mask = Callable[[str], str]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def start_log(level: int, *, is_json: bool = False, mask: Mask | None = None) -> None:
    """Write this process's log to stderr from now on; called again, it replaces what was said before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(mask=mask) if is_json else TextLines(mask=mask))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """Write a line of text: time, level, who says it, and `event key=value ...: words`; a trace below it.

    A foreign exception's words may hold a prompt or a key: they are written as `mask` leaves them, and without one only
    its type and where it came from.
    """

    def __init__(self, *, mask: Mask | None) -> None:
        super().__init__(_FORMAT)
        self._mask = mask

    def formatException(self, ei: ExcInfo) -> str:
        """Write the trace."""
        if ei[1] is None:
            return ""
        if self._mask is not None:
            return self._mask(super().formatException(ei))
        return "\n".join(_frames(ei[1]))


class JsonLines(TextLines):
    """Write an object a line: `at` (UTC), `level`, `logger`, `event`, its fields, `message`, and `trace` of a fault.

    `id` and `call` are both the id of the call that the event is about, and are written as `call`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write one event."""
        message = record.getMessage()
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
            **_fields(message),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def _fields(message: str) -> dict[str, str]:
    found = _EVENT.match(message)
    if found is None:
        return {}
    pairs = dict(_PAIR.findall(found[2]))
    if "id" in pairs:
        pairs["call"] = pairs.pop("id")
    return {"event": found[1], **pairs}


def _frames(error: BaseException) -> Iterator[str]:
    """Write a trace without any exception's words, the cause before its effect."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _frames(cause)
    yield "Traceback (most recent call last):"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    yield f"{type(error).__module__}.{type(error).__qualname__}"
