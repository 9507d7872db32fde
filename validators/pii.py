"""Find personal data by its shape and its check digits, and put placeholders in its place."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.options import read_words, refuse_unknown
from validators.pii_shapes import SHAPES, TYPES, URL_CREDENTIALS
from validators.recognise import Recognisers


class Pii:
    """Find personal data of the `types` chosen; a rewrite puts `[EMAIL]`, `[PHONE]` and so on in its place.

    Names, places and whatever has no shape of its own are not found: that takes a model.
    """

    name = "pii"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)

    def __init__(self, types: Sequence[str] = TYPES) -> None:
        self._recognisers = Recognisers([shape for shape in SHAPES if shape.name in types])
        self.longest_match: int | None = self._recognisers.longest

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for everything found to be replaced; the reason names the sorts."""
        found = list(self._recognisers.find(text, start=context.start))
        if not found:
            return PASSED
        sorts = ", ".join(sorted({one.name for one in found}))
        spans = tuple(Span(one.start, one.end, _placeholder(one.name, text[one.start : one.end])) for one in found)
        return Verdict(Outcome.REWRITE, spans, f"it holds personal data ({sorts})")


def create_pii(options: Options) -> Pii:
    """Build the check from `types`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("types",))
    return Pii(read_words(options, "types", TYPES, default=TYPES))


def _placeholder(sort: str, found: str) -> str:
    """Write what stands in the place of something found; of credentials in a URL the scheme stays."""
    if sort == URL_CREDENTIALS:
        return f"{found.partition('://')[0]}://[CREDENTIALS]@"
    return f"[{sort.upper()}]"
