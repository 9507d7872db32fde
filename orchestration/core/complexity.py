"""How hard a request is, from its text alone: features, a score, and the model chosen by it.

A pure function of the request, cheap enough for every call. How well it does is measured by
`python -m benchmarks.complexity`, which also chose the weights' bars.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestration.core.request import Request

MAX_CHARS_READ = 20_000
"""Of the last user text; more of it changes no decision but costs time."""
MEDIUM_FROM = 0.8
LARGE_FROM = 2.5

_CODE = re.compile(
    r"```|\b(?:def|class|import|return|SELECT|function|const|public|void)\b[^.?!]{0,60}[({:;=]|[{};]\s*$", re.M
)
_CODE_WORDS = re.compile(
    r"\b(?:code|python|javascript|typescript|rust|java|sql|regex|bash|script|function|api|bug|stack ?trace|traceback"
    r"|unit tests?|compile|refactor|algorithm|query|class|endpoint|thread|async|docker|kubernetes)\b",
    re.I,
)
_MATHS = re.compile(
    r"[∑∫√≤≥≠∂∞∈∀∃]|\\(?:frac|sum|int|begin)\b|\d\s*[\^*/]\s*[\dn(]|\b[a-z]\^\d|\b[xyn]\s*[=<>]\s*-?\d"
    r"|\b(?:integral|derivative|equation|theorem|matrix|eigenvalues?|probability|polynomial|converges?|modulo|proof)\b",
    re.I,
)
_DEEP = re.compile(
    r"\b(?:prove|derive|proof|design|architect\w*|trade-?offs?|step[- ]by[- ]step|root cause|analy[sz]e|evaluate"
    r"|critique|optimi[sz]e|implement|refactor|debug|formal\w*|rigorous\w*|in depth|in detail|comprehensive|strategy"
    r"|plan|migrat\w+|simulat\w+|model the|concurren\w+|distributed|thread-?safe|lock-?free|complexity)\b",
    re.I,
)
_PROOF = re.compile(r"\b(?:prov(?:e|es|ing)|proofs?|derive|lemma|differential equation|step[- ]by[- ]step)\b", re.I)
_MIDDLE = re.compile(
    r"\b(?:explain|compare|contrast|summari[sz]e|describe|difference|differ|why|how (?:do|does|can|would|should|to)"
    r"|write|draft|outline|rewrite|list|suggest|recommend|pros and cons|example|paragraph|essay|story"
    r"|email|letter|review)\b",
    re.I,
)
_CONSTRAINT = re.compile(
    r"\b(?:must|should|at (?:least|most)|exactly|without|only|no more than|ensure|handle|include|avoid|assum\w+|given"
    r"|as well as|support\w*|under \d+|per (?:second|day|month))\b|^\s*(?:[-*]|\d+[.)])\s",
    re.I | re.M,
)


class Size(StrEnum):
    """How large a model a request wants."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Features:
    """What the score is made of: counts in the last user text, and the shape of the rest."""

    chars: int = 0
    context_chars: int = 0
    questions: int = 0
    constraints: int = 0
    code: int = 0
    code_words: int = 0
    maths: int = 0
    proofs: int = 0
    deep_words: int = 0
    middle_words: int = 0
    turns: int = 0
    tools: int = 0
    has_schema: bool = False

    def record(self) -> dict[str, int | bool]:
        """Write them as JSON's values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The models by size, and the bars between them."""

    small: str
    medium: str
    large: str
    medium_from: float = MEDIUM_FROM
    large_from: float = LARGE_FROM

    def model(self, size: Size) -> str:
        """Name the model of a size."""
        return {Size.SMALL: self.small, Size.MEDIUM: self.medium, Size.LARGE: self.large}[size]

    def models(self) -> tuple[str, ...]:
        """List them, each once."""
        return tuple(dict.fromkeys((self.small, self.medium, self.large)))

    def decide(self, features: Features) -> tuple[Size, float]:
        """Return the size, and the score that it follows from."""
        score = score_of(features)
        if score >= self.large_from:
            return Size.LARGE, score
        return (Size.MEDIUM if score >= self.medium_from else Size.SMALL), score

    def choose(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return the model for a request, and the decision with all that it followed from."""
        features = features_of(request)
        size, score = self.decide(features)
        decision = {
            "size": size.value,
            "score": round(score, 4),
            "medium_from": self.medium_from,
            "large_from": self.large_from,
            "features": features.record(),
            "model": self.model(size),
        }
        return self.model(size), decision


def features_of(request: Request) -> Features:
    """Count what tells hard requests from easy ones."""
    users = [text for role, text in _texts(request) if role == "user"]
    last = users[-1] if users else ""
    read = last[:MAX_CHARS_READ]
    return Features(
        chars=len(last),
        context_chars=sum(len(text) for _, text in _texts(request)) - len(last),
        questions=read.count("?"),
        constraints=_count(_CONSTRAINT, read),
        code=_count(_CODE, read),
        code_words=_count(_CODE_WORDS, read),
        maths=_count(_MATHS, read),
        proofs=_count(_PROOF, read),
        deep_words=_count(_DEEP, read),
        middle_words=_count(_MIDDLE, read),
        turns=len(users),
        tools=len(request.fields.get("tools") or ()),
        has_schema=_wants_schema(request.fields.get("response_format")),
    )


def score_of(features: Features) -> float:
    """Add up: each feature's share has a bound, so that no single one decides alone."""
    return (
        0.9 * math.log2(1 + features.chars / 120)
        + 0.35 * math.log2(1 + features.context_chars / 1000)
        + 0.3 * min(features.questions - 1 if features.questions else 0, 3)
        + 0.35 * min(features.constraints, 6)
        + 0.5 * min(features.code, 4)
        + 0.5 * min(features.code_words, 3)
        + 0.6 * min(features.maths, 3)
        + 1.2 * min(features.proofs, 2)
        + 1.1 * min(features.deep_words, 4)
        + 0.8 * min(features.middle_words, 2)
        + 0.1 * min(features.turns - 1 if features.turns else 0, 10)
        + 0.4 * min(features.tools, 5)
        + (0.5 if features.has_schema else 0.0)
    )


def _texts(request: Request) -> Iterator[tuple[str, str]]:
    prompt = request.fields.get("prompt")
    if isinstance(prompt, str):
        yield "user", prompt
    for message in request.messages:
        yield str(message.get("role")), _text_of(message.get("content"))


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "\n".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _wants_schema(format: Any) -> bool:
    return isinstance(format, Mapping) and format.get("type") == "json_schema"


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))
