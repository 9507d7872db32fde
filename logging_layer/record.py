"""What is kept about one call: everything that was decided, and as much of its content as is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from logging_layer.codec import encode
from logging_layer.content import ContentMode
from orchestration.core import Attempt, CacheNote, CheckNote, Controls, Kind, Usage
from orchestration.core.trace_context import TraceContext
from orchestration.core.value import value

RECORD_VERSION = 1


class Outcome(StrEnum):
    """How a call ended. ANSWERED: its `Finish` was handed on, whatever the client did afterwards."""

    ANSWERED = "answered"
    ERROR = "error"
    BLOCKED = "blocked"
    CLIENT_LEFT = "client_left"


class Phase(StrEnum):
    """How far a call had come when it ended."""

    BEFORE_CONTENT = "before_content"
    STREAMING = "streaming"
    FINISHED = "finished"


@value
class Failure:
    """Why a call was not answered; `message` is left out where content is not logged in full, it may quote some."""

    type: str
    code: str
    param: str | None = None
    message: str | None = None


@value
class Content:
    """The request's fields and the answer's choices, as the mode allows; `left_out` says what is missing and why."""

    mode: ContentMode
    request: Mapping[str, Any] | None = None
    answer: Sequence[Mapping[str, Any]] | None = None
    left_out: tuple[str, ...] = ()


@value
class CallRecord:
    """One call, however it ended. Times are Unix seconds or milliseconds since the call came in, as named.

    `status` is the HTTP status, 499 for a client that left before the end. `overhead_ms` is the time up to the
    first event without the time that backends took. `spans` holds each layer's start and end, see `stages.py`.
    No header is ever in here but the caller's trace.
    """

    id: str
    request_id: str
    tenant: str
    kind: Kind
    dialect: str
    requested_model: str
    is_streamed: bool
    worker: str
    received_at: float
    duration_ms: float
    outcome: Outcome
    phase: Phase
    status: int
    request_hash: str
    content: Content
    ttft_ms: float | None = None
    overhead_ms: float | None = None
    error: Failure | None = None
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    backend: str | None = None
    is_fallback: bool = False
    usage: Usage | None = None
    cost_usd: float | None = None
    num_chars: int = 0
    num_vectors: int = 0
    user: str | None = None
    session: str | None = None
    controls: Controls = field(default_factory=Controls)
    cache: CacheNote = field(default_factory=CacheNote)
    checks: Sequence[CheckNote] = ()
    attempts: Sequence[Attempt] = ()
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    spans: Sequence[Mapping[str, Any]] = ()
    degraded: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    trace: TraceContext | None = None
    version: int = RECORD_VERSION

    def to_json(self) -> bytes:
        """Write the record as one line of JSON; raises `ValueError` where it is nested too deeply."""
        return encode(self)

    def without_content(self, reason: str) -> CallRecord:
        """Copy the record without its texts, saying why."""
        content = Content(mode=self.content.mode, left_out=(*self.content.left_out, reason))
        return replace(self, content=content, extra={}, user=None, session=None)
