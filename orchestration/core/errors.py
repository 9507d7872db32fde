"""Every error that a call can end with.

LaminaError
  InvalidRequest            400  the client's request is wrong; names the field
    ContextTooLong          400  prompt and answer cannot fit the model's context
    Blocked                 400  a check refused the request or the answer
  Unauthorized              401  no key, or a wrong one
  Forbidden                 403  a right key that may not do this
  NotFound                  404  no such model, call or path
  BodyTooLarge              413  the request's body is over the limit
  CheckUnavailable          503  a check that must run could not
  CacheMissed               504  `only-if-cached`, and it was not (RFC 9111)
  LimitReached              429  a limit of the caller's own
  Overloaded                429  a bounded queue is full; says when to come back
  BackendError              502  a backend answered wrongly
    BackendUnavailable      503  a backend cannot be reached, or died
      BackendBusy           503  a backend says that it is overloaded as a whole
    BackendTimeout          504  a backend took too long
    CredentialsRefused      502  a backend refused our credentials for it
    BackendRefused          any  a backend refused the request as the client's fault
  StreamBroken              502  a backend's stream broke off after content had been sent
  ServerError               500  a fault of ours
"""

from __future__ import annotations


class LaminaError(Exception):
    """The base: an HTTP status and OpenAI's four fields. `message` is for the client and holds no secret."""

    status = 500
    type = "server_error"
    code: str | None = None
    may_fall_back = False
    """Whether another backend may be asked, as long as no content was sent."""
    is_retryable = False
    """Whether the same backend may be asked again."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.retry_after_s = retry_after_s


class InvalidRequest(LaminaError):
    """The request is wrong: `param` names the field and the message says what would be right."""

    status = 400
    type = "invalid_request_error"


class ContextTooLong(InvalidRequest):
    """The prompt, with the answer asked for, does not fit the model's context."""

    code = "context_length_exceeded"


class Blocked(InvalidRequest):
    """A check refused the request or the answer."""

    code = "content_blocked"


class CheckUnavailable(LaminaError):
    """A check that must run before the call may go on could not."""

    status = 503
    type = "server_error"
    code = "check_unavailable"


class Unauthorized(LaminaError):
    """The call carries no key where one is needed, or a key that nobody issued."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(LaminaError):
    """The key is known, and may not do this."""

    status = 403
    type = "permission_error"


class NotFound(LaminaError):
    """There is no such model, call or path."""

    status = 404
    type = "invalid_request_error"


class BodyTooLarge(LaminaError):
    """The request's body is larger than the gateway reads."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class CacheMissed(LaminaError):
    """The client asked for a cached answer or none, and there is none."""

    status = 504
    type = "invalid_request_error"
    code = "only_if_cached_missed"


class LimitReached(LaminaError):
    """A limit of the caller's own is reached."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Overloaded(LaminaError):
    """A bounded queue is full; `retry_after_s` is an honest estimate of when it will not be."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"
    may_fall_back = True
    is_retryable = False


class BackendError(LaminaError):
    """A backend answered with something that is no answer."""

    status = 502
    type = "server_error"
    code = "backend_error"
    may_fall_back = True
    is_retryable = True


class BackendUnavailable(BackendError):
    """A backend cannot be reached, or died with the call in flight."""

    status = 503
    code = "backend_unavailable"


class BackendBusy(BackendUnavailable):
    """A backend is overloaded as a whole, whoever asks (Anthropic's 529)."""

    code = "backend_overloaded"


class BackendTimeout(BackendError):
    """A backend took longer than its settings allow."""

    status = 504
    code = "backend_timeout"
    is_retryable = False


class CredentialsRefused(BackendError):
    """A backend refused our own key for it, or that key's account: other backends have others."""

    code = "backend_credentials_refused"
    is_retryable = False


class BackendRefused(LaminaError):
    """A backend refused the request as the client's fault: its status and words are passed on."""

    type = "invalid_request_error"
    code = "backend_refused"

    def __init__(self, message: str, *, status: int, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status


class StreamBroken(LaminaError):
    """A backend's stream broke off after content had been sent; nothing can be tried again."""

    status = 502
    type = "server_error"
    code = "stream_broken"


class ServerError(LaminaError):
    """A fault of ours; the log holds the trace."""


class Unavailable(LaminaError):
    """A part of ours that this needs does not answer now."""

    status = 503
    type = "server_error"
    code = "part_unavailable"
