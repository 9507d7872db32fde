"""One call: who asked, what, under which controls, and what was decided about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestration.core.notes import Notes
from orchestration.core.request import Kind, Request
from orchestration.core.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class CacheControl:
    """The request's `Cache-Control`: RFC 9111's words, as far as they make sense for answers."""

    is_no_cache: bool = False
    is_no_store: bool = False
    is_only_if_cached: bool = False
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Controls:
    """What the client asked of the gateway itself; `threshold` is a cosine floor that may only raise the bar.

    `tags` are given to the answer where it is kept: it can be invalidated by each of them.
    """

    cache: CacheControl = CacheControl()
    threshold: float | None = None
    namespace: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call on its way through the layers. A layer that changes it passes on `replace(call, request=...)`.

    `id` is ours (a ULID); `request_id` is the client's `x-request-id`, or ours where none came. `tenant` is a
    keyed hash, never the secret itself. `received_at` is Unix time in seconds, `started` the monotonic clock's.
    """

    id: str
    request_id: str
    tenant: str
    request: Request
    received_at: float
    started: float
    controls: Controls = Controls()
    notes: Notes = field(default_factory=Notes)
    trace: TraceContext | None = None

    @property
    def kind(self) -> Kind:
        """Name the sort of answer wanted."""
        return self.request.kind
