"""An error on the wire: the status, the body, and the headers that tell a client when to come back."""

from __future__ import annotations

import math

import orjson

from gateway.anthropic_errors import anthropic_error_body, anthropic_status, is_anthropic_path
from gateway.http_errors import MethodNotAllowed
from gateway.limits.errors import BudgetExceeded
from orchestration.core.errors import CacheMissed, LaminaError, ServerError


def status_of(error: LaminaError) -> int:
    """Return the HTTP status; a backend's own that is no error status becomes 502."""
    return error.status if 400 <= error.status <= 599 else 502


def error_reply(error: LaminaError, *, path: str, call_id: str) -> tuple[int, bytes]:
    """Return status and body in the shape that the path's clients read."""
    if is_anthropic_path(path):
        return anthropic_status(error), anthropic_error_body(error, call_id)
    return status_of(error), error_body(error)


def error_body(error: LaminaError) -> bytes:
    """Write `{"error": {"message", "type", "param", "code"}}`."""
    fields = {"message": _clean(error.message), "type": error.type, "param": error.param, "code": error.code}
    return orjson.dumps({"error": fields})


def error_headers(error: LaminaError) -> list[tuple[bytes, bytes]]:
    """Say when to try again (`retry-after-ms`, `retry-after`), or not to, and which methods would do."""
    headers = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after-ms", b"%d" % math.ceil(error.retry_after_s * 1000.0)))
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    match error:
        case CacheMissed() | BudgetExceeded():
            # Clients repeat a 504 and a 429, and would find the same cache and the same budget.
            headers.append((b"x-should-retry", b"false"))
        case MethodNotAllowed():
            headers.append((b"allow", error.allowed.encode()))
        case _:
            pass
    return headers


def fault_error(call_id: str) -> ServerError:
    """Make the error that a client sees of a fault of ours: it says where to look, and nothing else."""
    return ServerError(f"Something failed here, and not by your request. The log has it under call {call_id}.")


def _clean(text: str) -> str:
    """Replace lone surrogates, which no JSON can carry: messages quote what others sent."""
    return text.encode("utf-8", "replace").decode()
