"""Call guardrails-ai validators directly, without a `Guard`. Imported by the guardrails worker alone.

A `Guard` would phone home, mix the texts of callers and lose the last sentence of a stream; a validator called by
its `validate` does none of that, once metrics are switched off before the first validator is built.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Mapping
from typing import Any

from guardrails.settings import settings

from validators.check import PASSED, Outcome, Span, Subject, Verdict
from validators.guardrails_table import Borrowed, borrowed, checked_options


def silence() -> None:
    """Switch off metrics, remote inference and debug logs (which quote texts); to be called before any `build`."""
    settings.rc.enable_metrics = False
    settings.rc.use_remote_inferencing = False
    logging.getLogger("guardrails").setLevel(logging.WARNING)


_LINE_END = re.compile(r"(\r\n|\r|\n)")


class Adapter:
    """One validator, ready to look at texts, one at a time: validators may keep state between their own lines.

    Raises `ValueError` for a name or options that are not known, or that the validator refuses.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._known: Borrowed = borrowed(name)
        arguments = checked_options(name, options)
        assert settings.rc.enable_metrics is False, "silence() comes before any validator"
        validator_class = getattr(importlib.import_module(self._known.module), self._known.class_name)
        try:
            self._validator = validator_class(on_fail="noop", **arguments)
        except Exception as exc:  # whatever a stranger's constructor raises, the settings are what is wrong
            raise ValueError(f"{name} refuses its options: {exc}") from exc

    def check(self, text: str) -> Verdict:
        """Run the validator; blocks for as long as it takes. What it raises is the caller's to answer."""
        is_content = self._known.subject is Subject.CONTENT
        # Validators of lines append a newline, with a warning, where a text has none, and turn every line end into \n
        # by way of a temporary file: done here, it can be undone.
        value = _LINE_END.sub("\n", text) + "\n" if is_content else text
        result = self._validator.validate(value, {})
        if result.outcome == "pass":
            return PASSED
        spans = _spans(text, getattr(result, "fix_value", None), by_line=is_content) if self._known.rewrites else ()
        return Verdict(Outcome.REWRITE if spans else Outcome.BLOCK, spans, self._known.reason)


def _spans(text: str, fix: Any, *, by_line: bool) -> tuple[Span, ...]:
    """Say what a fix changed; empty where there is no usable fix: none at all, or one that makes the text longer."""
    if not isinstance(fix, str):
        return ()
    if not by_line:
        return () if len(fix) > len(text) else _changed(text, fix, 0)
    lines, fixed = _LINE_END.split(text), fix.removesuffix("\n").split("\n")
    if len(fixed) != (len(lines) + 1) // 2:
        return _changed(text, fix.removesuffix("\n"), 0)
    spans: list[Span] = []
    offset = 0
    for index, line in enumerate(lines):
        if index % 2 == 0:
            spans.extend(_changed(line, fixed[index // 2], offset))
        offset += len(line)
    return tuple(spans)


def _changed(text: str, fixed: str, offset: int) -> tuple[Span, ...]:
    """Bracket the change between what the two texts begin and end with in common."""
    if text == fixed:
        return ()
    shorter = min(len(text), len(fixed))
    head = next((index for index in range(shorter) if text[index] != fixed[index]), shorter)
    tail = next((index for index in range(shorter - head) if text[-1 - index] != fixed[-1 - index]), shorter - head)
    return (Span(offset + head, offset + len(text) - tail, fixed[head : len(fixed) - tail]),)
