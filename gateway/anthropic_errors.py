"""An error as Anthropic writes it, for the paths that its clients ask."""

from __future__ import annotations

import orjson

from orchestration.core.errors import BackendBusy, LaminaError, Overloaded

PREFIX = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_anthropic_path(path: str) -> bool:
    """Tell whether clients of Anthropic's API ask this path."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def anthropic_status(error: LaminaError) -> int:
    """Return the HTTP status: 529 says that the server is overloaded, 429 that the caller asked too much."""
    if isinstance(error, Overloaded | BackendBusy):
        return 529
    return error.status if 400 <= error.status <= 599 else 502


def anthropic_error_body(error: LaminaError, request_id: str) -> bytes:
    """Write `{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    # Messages quote what others sent: half a surrogate pair in one could not be written as JSON.
    message = error.message.encode("utf-8", "replace").decode()
    fields = {"type": anthropic_type(error), "message": message}
    return orjson.dumps({"type": "error", "error": fields, "request_id": request_id})


def anthropic_type(error: LaminaError) -> str:
    """Return the type of error that Anthropic's clients know."""
    status = anthropic_status(error)
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
