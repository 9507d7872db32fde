"""A text that cannot be printed by accident."""

from __future__ import annotations

import hmac


class Secret:
    """Hold a key or a password; only `reveal()` gives it back, and no repr, str, format or pickle does."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself, for the one place that must send it."""
        return self._value

    def matches(self, other: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self._value.encode(), other.encode())

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")
