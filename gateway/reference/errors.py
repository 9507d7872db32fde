"""The table of errors, from the classes themselves."""

from __future__ import annotations

from collections.abc import Iterator

from gateway import http_errors
from gateway.anthropic_errors import anthropic_status, anthropic_type
from gateway.limits import errors as limits_errors
from gateway.reference.tables import table
from orchestration.core import errors
from orchestration.core.errors import LaminaError

_MODULES = (errors, http_errors, limits_errors)


def errors_table() -> str:
    """Write every error that a call can end with: status, type and code, Anthropic's words, and its meaning."""
    rows = [_row(kind) for kind in sorted(error_classes(), key=lambda kind: (kind.status, kind.__name__))]
    return table(["status", "type", "code", "at `/v1/messages`", "when"], rows)


def error_classes() -> Iterator[type[LaminaError]]:
    """Give every class of error but the base."""
    for module in _MODULES:
        for kind in vars(module).values():
            is_ours = isinstance(kind, type) and issubclass(kind, LaminaError) and kind.__module__ == module.__name__
            if is_ours and kind is not LaminaError:
                yield kind


def _row(kind: type[LaminaError]) -> list[str]:
    example = LaminaError("")
    # The class is asked for nothing but its words: some classes want more to be made.
    example.__class__ = kind
    meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    is_passed_on = kind is errors.BackendRefused
    status = "the backend's" if is_passed_on else str(kind.status)
    theirs = "by status" if is_passed_on else f"{anthropic_status(example)} `{anthropic_type(example)}`"
    code = "`null`" if kind.code is None else f"`{kind.code}`"
    return [status, f"`{kind.type}`", code, theirs, meaning]
