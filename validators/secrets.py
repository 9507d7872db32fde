"""Find keys and tokens of well-known shapes."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.options import read, refuse_unknown
from validators.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Shape:
    """What one sort of secret looks like; `longest` bounds the expression's match in characters."""

    name: str
    expression: str
    longest: int


SHAPES = (
    Shape("private key", r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----", 64),
    Shape("AWS access key id", r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ANVA|ABIA|ACCA)[0-9A-Z]{16}\b", 20),
    Shape("GitHub token", r"(?:\b|_)(?:gh[pousr]_[A-Za-z0-9]{36,100}|github_pat_[A-Za-z0-9_]{22,100})", 112),
    Shape("GitLab token", r"(?:\b|_)gl(?:pat|ptt|dt|rt|cbt|soat)-[A-Za-z0-9_-]{20,100}", 108),
    Shape("Slack token", r"(?:\b|_)(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,100}", 106),
    Shape("model provider key", r"(?:\b|_)sk-[A-Za-z0-9]{20,100}", 104),
    Shape("model provider key", r"(?:\b|_)sk-(?:ant|proj|svcacct|admin|or|lf)-[A-Za-z0-9_-]{16,100}", 112),
    Shape(
        "model provider key", r"(?:\b|_)(?:gsk_[A-Za-z0-9]{40,100}|xai-[A-Za-z0-9]{60,100}|hf_[A-Za-z0-9]{30,100})", 105
    ),
    Shape("Stripe key", r"(?:\b|_)(?:(?:sk|rk)_(?:live|test)|whsec)_[A-Za-z0-9]{16,100}", 109),
    Shape(
        "Google API key", r"(?:\b|_)(?:AIza[0-9A-Za-z_-]{35}|GOCSPX-[0-9A-Za-z_-]{28}|ya29\.[0-9A-Za-z_-]{20,100})", 106
    ),
    Shape("SendGrid key", r"(?:\b|_)SG\.[0-9A-Za-z_-]{16,32}\.[0-9A-Za-z_-]{32,64}", 101),
    Shape("Twilio key", r"\bSK[0-9a-f]{32}\b", 34),
    Shape("Telegram token", r"\b[0-9]{8,10}:AA[0-9A-Za-z_-]{33}", 46),
    Shape("DigitalOcean token", r"(?:\b|_)do[opr]_v1_[0-9a-f]{64}", 72),
    Shape("Databricks token", r"(?:\b|_)dapi[0-9a-f]{32}\b", 37),
    Shape("JSON web token", r"(?:\b|_)eyJ(?:hbGciO|0eXAiO|raWQiO|qa3UiO|lbmMiO|jdHkiO)[0-9A-Za-z_-]{10,100}", 110),
)

LONGEST_RUN = 120
LONGEST_TAIL = 128
_GAP = r"(?:\s|\\[nr])"
TAIL = (
    # The rest of a run of token characters, or the next part of a dotted token.
    rf"[0-9A-Za-z_+/=-]{{1,{LONGEST_RUN}}}|\.[0-9A-Za-z_-]{{8,{LONGEST_RUN}}}"
    # A line of a key's body (no word of prose is that long) or of its header, or the last one.
    rf"|{_GAP}{{1,4}}[0-9A-Za-z+/]{{40,80}}={{0,2}}"
    rf"|{_GAP}{{1,4}}(?:Proc-Type|DEK-Info|Comment|Version): [^\r\n]{{1,80}}"
    rf"|{_GAP}{{0,4}}[0-9A-Za-z+/]{{0,60}}={{0,2}}{_GAP}{{0,4}}-----END [A-Z0-9 ]{{0,16}}KEY[A-Z ]{{0,6}}-----"
)
"""What belongs to a secret when it stands right behind one: a match is bounded, the secret itself is not."""


class Secrets:
    """Find secrets; a rewrite puts `replacement` in the place of each, however long it is."""

    name = "secrets"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)
    longest_match: int | None = max(LONGEST_TAIL, *(shape.longest for shape in SHAPES))

    def __init__(self, *, replacement: str = "[secret removed]") -> None:
        self._replacement = replacement
        self._pattern = Pattern("|".join(f"(?:{shape.expression})" for shape in SHAPES), tail=TAIL)

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for every secret to be replaced."""
        found = self._pattern.find(text, start=context.start, follows_match=context.follows_match)
        spans = tuple(Span(start, end, "" if is_tail else self._replacement) for start, end, is_tail in found)
        return Verdict(Outcome.REWRITE, spans, "it holds what looks like a secret key") if spans else PASSED


def create_secrets(options: Options) -> Secrets:
    """Build the check from `replacement`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("replacement",))
    return Secrets(replacement=read(options, "replacement", str, default="[secret removed]"))
