"""Demand that an answer is JSON."""

from __future__ import annotations

import json
from typing import Any

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.options import read, refuse_unknown

WHEN = ("always", "requested")


class JsonText:
    """Refuse an answer that does not parse as one JSON value (RFC 8259: no NaN, nothing before or after it).

    With `only_requested` it looks only at answers to requests whose `response_format` asks for JSON.
    """

    name = "json"
    version = "1"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset({Stage.OUTPUT})
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, *, only_requested: bool = False) -> None:
        self._only_requested = only_requested

    def applies(self, request: Request) -> bool:
        """Apply to every request, or to those that ask for JSON."""
        wanted = request.fields.get("response_format")
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        return not self._only_requested or kind in ("json_object", "json_schema")

    async def check(self, text: str, context: Context) -> Verdict:
        """Parse the text and refuse what does not parse, saying where it fails."""
        _, problem = parse_json(text)
        return PASSED if problem is None else Verdict(Outcome.BLOCK, reason=problem)


def parse_json(text: str) -> tuple[Any, str | None]:
    """Return a text's JSON value, or None and what is wrong with it."""
    try:
        return json.loads(text, parse_constant=_refuse_constant), None
    except json.JSONDecodeError as exc:
        return None, f"it is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}"
    except (ValueError, RecursionError):  # a constant that JSON does not have; a number or a nesting without end
        return None, "it is not JSON that every parser reads"


def create_json(options: Options) -> JsonText:
    """Build the check from `when` (`always` or `requested`); raises `ValueError` naming the option."""
    refuse_unknown(options, ("when",))
    when = read(options, "when", str, default="always")
    if when not in WHEN:
        raise ValueError(f"when: must be one of {', '.join(WHEN)}, not {when!r}")
    return JsonText(only_requested=when == "requested")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
