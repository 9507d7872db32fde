"""Find what a pattern of the settings matches, in time linear in the text."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.options import read, read_texts, refuse_unknown
from validators.patterns import Pattern, compiled

MAX_PATTERNS = 100
MAX_PATTERN_CHARS = 2_000
LONGEST_WINDOW = 4_096
"""A pattern that may match more characters than these is looked for in whole answers only."""


class Regex:
    """Find any of `patterns`, in RE2's syntax: it has no backtracking, so no text makes it slow.

    Raises `ValueError` for patterns that the engine refuses (look-around, references back) or that match nothing.
    """

    name = "regex"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)

    def __init__(self, patterns: Sequence[str], *, replacement: str = "****") -> None:
        for pattern in patterns:
            _refuse_empty(pattern)
        widths = [_longest(pattern) for pattern in patterns]
        bounded = [width for width in widths if width is not None]
        self.longest_match: int | None = max(bounded) if len(bounded) == len(widths) else None
        self._replacement = replacement
        self._pattern = Pattern("|".join(f"(?:{pattern})" for pattern in patterns), takes_groups=False)

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for every match to be replaced."""
        found = self._pattern.find(text, start=context.start)
        spans = tuple(Span(start, end, self._replacement) for start, end, _ in found if end > start)
        return Verdict(Outcome.REWRITE, spans, "it matches a forbidden pattern") if spans else PASSED


class RequiredRegex:
    """Refuse an answer, or a request's whole text, that a pattern does not match as a whole."""

    name = "regex"
    version = "1"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, pattern: str) -> None:
        try:
            self._engine = compiled(pattern)
        except ValueError as exc:
            raise ValueError(f"must_match: {exc}") from exc

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Refuse a text of another form."""
        is_matched = self._engine.fullmatch(text.encode("utf-8", "replace")) is not None
        return PASSED if is_matched else Verdict(Outcome.BLOCK, reason="it does not have the form required")


def create_regex(options: Options) -> Regex | RequiredRegex:
    """Build the check from `patterns` and `replacement`, or from `must_match`; raises `ValueError`."""
    refuse_unknown(options, ("patterns", "replacement", "must_match"))
    required = read(options, "must_match", str)
    if required is not None and len(options) > 1:
        raise ValueError("must_match: stands alone; put forbidden patterns into a check of their own")
    if required is not None:
        return RequiredRegex(required)
    patterns = read_texts(options, "patterns", at_most=MAX_PATTERNS)
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"patterns: one has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are taken")
    return Regex(patterns, replacement=read(options, "replacement", str, default="****"))


def _refuse_empty(pattern: str) -> None:
    try:
        matches_nothing = compiled(pattern).search(b"") is not None
    except ValueError as exc:
        raise ValueError(f"patterns: '{pattern}': {exc}") from exc
    if matches_nothing or _widths(pattern)[0] == 0:
        raise ValueError(f"patterns: '{pattern}' matches the empty text, so it would be found everywhere")


def _longest(pattern: str) -> int | None:
    width = _widths(pattern)[1]
    return width if width <= LONGEST_WINDOW else None


def _widths(pattern: str) -> tuple[int, int]:
    """Bound what a pattern matches, in characters; a pattern that only RE2 can read has no upper bound here."""
    parser = importlib.import_module("re._parser")  # RE2 does not say it; the standard library's parser does
    try:
        shortest, longest = parser.parse(pattern).getwidth()
    except (re.error, RecursionError, OverflowError):
        return 1, LONGEST_WINDOW + 1
    return int(shortest), int(longest)
