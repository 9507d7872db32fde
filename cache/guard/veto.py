"""What the guard says against serving one question's answer to another."""

from __future__ import annotations

from dataclasses import dataclass

SOFT_REASONS = frozenset({"substitution", "qualifier"})
"""The reasons that a judge may overrule: words that no list knows. Of the guard's 13 wrong vetoes on the `dev` pairs 10
are of these two; all others name what differs, and stand."""


@dataclass(frozen=True, slots=True)
class Veto:
    """`reason` is a code that may be logged; `detail` names the words, so it is content of the two questions."""

    reason: str
    detail: str


def against(reason: str, one: object, other: object) -> Veto:
    """Make a veto whose detail does not depend on which text came first."""
    return Veto(reason, " / ".join(sorted((str(one), str(other)))))


def told(words: object) -> str:
    """Write a set of words in a fixed order."""
    return " ".join(sorted(words)) if isinstance(words, frozenset | set | tuple | list) else str(words)
