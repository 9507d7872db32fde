"""How many tokens one call may have, and what bounds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """A call may have `tokens`, prompt and answer: the model's `context`, or fewer where memory holds no more."""

    tokens: int
    context: int

    @property
    def words(self) -> str:
        """Say it, without a full stop."""
        said = f"This model's maximum context length is {self.tokens} tokens"
        if self.tokens >= self.context:
            return said
        return f"{said} here, since the engine has KV memory for no more of its {self.context}"
