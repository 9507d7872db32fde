"""Errors that only HTTP knows; the rest of the tree is in `orchestration/core/errors.py`."""

from __future__ import annotations

from orchestration.core.errors import LaminaError


class MethodNotAllowed(LaminaError):
    """The path exists and answers other methods; `allowed` is what `Allow` says."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class BodyStalled(LaminaError):
    """The client stopped sending in the middle of its body."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class UnsupportedEncoding(LaminaError):
    """The request's body is compressed: bodies are read as they are."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class CallRunning(LaminaError):
    """A socket was asked for a second call while its first one runs."""

    status = 409
    type = "invalid_request_error"
    code = "call_running"


class Stopping(LaminaError):
    """The gateway is being stopped, and the time for calls in flight to end is over."""

    status = 503
    type = "server_error"
    code = "shutting_down"


class ClientLeft(Exception):
    """The client closed its connection: nobody is left to answer, so this is no error to answer with."""
