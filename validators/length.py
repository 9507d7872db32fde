"""Bound how long a text is, in characters."""

from __future__ import annotations

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.options import read, refuse_unknown


class Length:
    """Bound the request's text as a whole, or one choice's answer; an answer too long can be cut."""

    name = "length"
    version = "1"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset({Stage.OUTPUT})
    longest_match = None

    def __init__(self, *, min_chars: int = 0, max_chars: int | None = None) -> None:
        self._min_chars = min_chars
        self._max_chars = max_chars

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for a cut where the text is too long, and refuse it where it is too short."""
        if len(text) < self._min_chars:
            reason = f"it has {len(text)} characters; at least {self._min_chars} are required"
            return Verdict(Outcome.BLOCK, reason=reason)
        if self._max_chars is not None and len(text) > self._max_chars:
            reason = f"it has {len(text)} characters; at most {self._max_chars} are allowed"
            return Verdict(Outcome.REWRITE, (Span(self._max_chars, len(text), ""),), reason)
        return PASSED


def create_length(options: Options) -> Length:
    """Build the check from `min_chars` and `max_chars`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("min_chars", "max_chars"))
    min_chars = read(options, "min_chars", int, default=0)
    max_chars = read(options, "max_chars", int)
    if min_chars < 0:
        raise ValueError("min_chars: must not be negative")
    if max_chars is not None and max_chars < max(min_chars, 1):
        raise ValueError(f"max_chars: {max_chars} is below {max(min_chars, 1)}")
    if max_chars is None and min_chars == 0:
        raise ValueError("max_chars: length needs max_chars, min_chars or both")
    return Length(min_chars=min_chars, max_chars=max_chars)
