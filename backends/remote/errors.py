"""What an upstream's error means to the caller: whose fault it is, and whether another backend may be asked."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from orchestration.core.errors import (
    BackendBusy,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    CredentialsRefused,
    LaminaError,
    Overloaded,
)
from orchestration.core.secret import Secret

_MAX_MESSAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class UpstreamFault:
    """An error as the upstream described it; `is_apis` says that it came in the shape that such APIs have."""

    message: str
    param: str | None = None
    code: str | None = None
    is_apis: bool = False


def read_fault(body: Any, *, fallback: str) -> UpstreamFault:
    """Find the words in an error body: OpenAI's shape, FastAPI's `detail`, or anything else near them."""
    is_apis = isinstance(body, Mapping) and ("error" in body or "message" in body)
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(error, str):
        return UpstreamFault(error or fallback, is_apis=is_apis)
    if not isinstance(error, Mapping):
        return UpstreamFault(fallback)
    message = error.get("message") or error.get("detail") or fallback
    code = error.get("code")
    param = error.get("param")
    return UpstreamFault(
        message if isinstance(message, str) else json.dumps(message),
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
        is_apis=is_apis,
    )


def build_error(
    status: int, fault: UpstreamFault, *, backend: str, api_key: Secret | None, retry_after_s: float | None = None
) -> LaminaError:
    """Turn a status and a fault into our error; its message never holds our key for that upstream."""
    message = _without_key(fault.message, api_key)[:_MAX_MESSAGE_CHARS]
    match status:
        case 404 if not fault.is_apis:  # a web server's own page, and no fault of the client's
            return BackendError(f"{backend} has no such path ({message}): is its base_url right?")
        case 400 | 404 | 413 | 422:
            return BackendRefused(message, status=status, param=fault.param, code=fault.code)
        case 401 | 402 | 403:
            return CredentialsRefused(f"{backend}: the provider refused our credentials")
        case 429:
            return Overloaded(f"{backend} is overloaded: {message}", retry_after_s=retry_after_s)
        case 408 | 504:
            return BackendTimeout(f"{backend} took too long: {message}", retry_after_s=retry_after_s)
        case 529:
            return BackendBusy(f"{backend} is overloaded: {message}", retry_after_s=retry_after_s)
        case 503:
            return BackendUnavailable(f"{backend} is unavailable: {message}", retry_after_s=retry_after_s)
        case _:
            return BackendError(f"{backend} answered {status}: {message}", retry_after_s=retry_after_s)


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that the upstream states, in any of the three forms in use."""
    for name, seconds in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            wait_s = float(value) * seconds
        except ValueError:
            continue  # a date, or nonsense
        if math.isfinite(wait_s):
            return max(0.0, wait_s)
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _without_key(message: str, api_key: Secret | None) -> str:
    if api_key is None or not api_key.reveal():
        return message
    return message.replace(api_key.reveal(), "***")
