"""What an error says about the backend that it came from: conditions that combine with `|`, `&` and `~`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestration.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    CredentialsRefused,
    LaminaError,
    Overloaded,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about one error."""

    holds: Callable[[LaminaError], bool]

    def __call__(self, error: LaminaError) -> bool:
        """Answer it."""
        return self.holds(error)

    def __or__(self, other: Condition) -> Condition:
        return Condition(lambda error: self(error) or other(error))

    def __and__(self, other: Condition) -> Condition:
        return Condition(lambda error: self(error) and other(error))

    def __invert__(self) -> Condition:
        return Condition(lambda error: not self(error))


def is_a(*types: type[LaminaError]) -> Condition:
    """Ask whether an error is of one of these classes."""
    return Condition(lambda error: isinstance(error, types))


IS_CLIENTS_FAULT = Condition(lambda error: not error.may_fall_back)
"""The request itself is wrong, or the error is one of ours: it is raised, nobody else is asked, nobody cools."""
ASKS_SAME_AGAIN = Condition(lambda error: error.is_retryable)
ROTATES = is_a(CredentialsRefused)
"""Our key there is no good: only backends with another key can help, and waiting a little does not."""
IS_LIMITED = is_a(Overloaded)
IS_SLOW = is_a(BackendTimeout)
IS_DOWN = is_a(BackendUnavailable)
IS_ODD = is_a(BackendError) & ~(ROTATES | IS_SLOW | IS_DOWN)
"""An answer that is none: the backend lives, and the next call may well succeed."""
