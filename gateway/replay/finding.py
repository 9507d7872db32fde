"""What became of one decision that was made again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """AGREES and DIFFERS speak for themselves. REDACTED: what it follows from was not logged, on purpose. UNKNOWN: it
    follows from something that this version has not, such as another version's model.
    """

    AGREES = "agrees"
    DIFFERS = "differs"
    REDACTED = "redacted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One decision of one call: what was recorded, and what it comes to now."""

    part: str
    verdict: Verdict
    recorded: Any = None
    recomputed: Any = None
    note: str | None = None


def compared(part: str, *, recorded: Any, recomputed: Any, note: str | None = None) -> Finding:
    """Compare what was decided with what it comes to now."""
    verdict = Verdict.AGREES if recorded == recomputed else Verdict.DIFFERS
    return Finding(part, verdict, recorded, recomputed, note)
