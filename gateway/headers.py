"""The words between client and gateway that travel in headers: controls in, decisions out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestration.core import CacheControl, CacheStatus, CheckNote, Controls, Notes
from orchestration.core.errors import InvalidRequest
from orchestration.core.notes import DROPPED_PARAMS
from orchestration.core.trace_context import TraceContext, parse_trace

MAX_REQUEST_ID_CHARS = 128
RATE_LIMIT = "ratelimit"
"""The key of `Notes.extra` that holds the headers `x-ratelimit-*` without that prefix."""
MAX_NAMESPACE_CHARS = 128
MAX_TAGS = 16
MAX_TAG_CHARS = 64
_VISIBLE = re.compile(r"[!-~]+")
_TAG = re.compile(r"[!-+\--~]+")  # visible ASCII without the comma
_NO_CACHE_CONTROL = CacheControl()
_NO_CONTROLS = Controls()


def request_id_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the client's `x-request-id`, or None where it is too long or holds more than visible ASCII."""
    value = headers.get(b"x-request-id", b"").decode("latin-1")
    return value if len(value) <= MAX_REQUEST_ID_CHARS and _VISIBLE.fullmatch(value) else None


def trace_of(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """Return the caller's trace, or None where it names none, or none that is one."""
    value = headers.get(b"traceparent")
    if value is None:
        return None
    return parse_trace(value.decode("latin-1"), headers.get(b"tracestate", b"").decode("latin-1"))


def controls_of(headers: Mapping[bytes, bytes]) -> Controls:
    """Read what the client asks of the gateway itself; raises `InvalidRequest` that names the header."""
    cache_control = headers.get(b"cache-control")
    threshold = headers.get(b"x-lamina-threshold")
    namespace = headers.get(b"x-lamina-namespace")
    tags = headers.get(b"x-lamina-cache-tags")
    if cache_control is threshold is namespace is tags is None:
        return _NO_CONTROLS
    return Controls(
        cache=_NO_CACHE_CONTROL if cache_control is None else cache_control_of(cache_control.decode("latin-1")),
        threshold=None if threshold is None else _threshold_of(threshold.decode("latin-1")),
        namespace="" if namespace is None else namespace_of(namespace.decode("latin-1")),
        tags=() if tags is None else _tags_of(tags.decode("latin-1")),
    )


def namespace_of(text: str, *, name: str = "x-lamina-namespace") -> str:
    """Return the text where it may be a namespace; raises `InvalidRequest` that names where it stood."""
    if len(text) > MAX_NAMESPACE_CHARS or not _VISIBLE.fullmatch(text):
        raise InvalidRequest(
            f"Invalid '{name}': expected 1 to {MAX_NAMESPACE_CHARS} visible ASCII characters.", param=name
        )
    return text


def cache_control_of(value: str) -> CacheControl:
    """Read RFC 9111's directives; unknown ones are ignored, and an age that is no number counts as 0 (stale)."""
    directives = {}
    for directive in value.split(","):
        name, _, argument = directive.partition("=")
        directives[name.strip().lower()] = argument.strip().strip('"')
    max_age = directives.get("max-age")
    return CacheControl(
        is_no_cache="no-cache" in directives,
        is_no_store="no-store" in directives,
        is_only_if_cached="only-if-cached" in directives,
        max_age_s=None if max_age is None else _seconds_of(max_age),
    )


def decision_headers(
    notes: Notes, *, backend: str | None, now: float, cost_is_known: bool
) -> list[tuple[bytes, bytes]]:
    """Say what was decided: the cache's part, the backend, the cost; `now` is Unix time in seconds.

    `backend` is the one that the answer names, for the case that no note does (a hit's).
    """
    cache = notes.cache
    headers = [(b"x-lamina-cache", cache.status.encode()), *_rate_limit_headers(notes)]
    backend = notes.backend or backend
    if backend is not None:
        headers.append((b"x-lamina-backend", header_value(backend)))
    dropped = notes.extra.get(DROPPED_PARAMS)
    if dropped is not None:
        headers.append((b"x-lamina-dropped", header_value(", ".join(dropped))))
    if notes.checks:
        headers.append((b"x-lamina-checks", header_value(", ".join(map(_check, notes.checks)))))
    if cache.status in (CacheStatus.EXACT, CacheStatus.SEMANTIC):
        headers += _hit_headers(notes, now)
        headers.append((b"x-lamina-cost-usd", b"0"))
    elif cost_is_known and notes.cost_usd is not None:
        headers.append((b"x-lamina-cost-usd", _plain(notes.cost_usd)))
    return headers


def header_value(text: str) -> bytes:
    """Write a text as a header's value: what is not printable ASCII becomes a question mark."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text).encode()


def _check(note: CheckNote) -> str:
    """Write a check that ran as RFC 8941's item with parameters: `secrets;at=input;did=rewritten;v="1"`."""
    return f'{note.check};at={note.stage};did={note.action};v="{note.version}";ms={note.duration_ms:.3f}'


def _rate_limit_headers(notes: Notes) -> list[tuple[bytes, bytes]]:
    """Say where the caller's limits stand, where it has any."""
    limits = notes.extra.get(RATE_LIMIT)
    if limits is None:
        return []
    return [(b"x-ratelimit-" + name.encode(), value.encode()) for name, value in limits.items()]


def _hit_headers(notes: Notes, now: float) -> list[tuple[bytes, bytes]]:
    cache = notes.cache
    age_s = max(0.0, now - (now if cache.entry_created_at is None else cache.entry_created_at))
    headers = [(b"age", b"%d" % age_s), (b"cache-status", _cache_status(notes, age_s))]
    if cache.entry is not None:
        headers.append((b"x-lamina-entry", header_value(cache.entry)))
    if cache.similarity is not None:
        headers.append((b"x-lamina-similarity", b"%.4f" % cache.similarity))
    if cache.threshold is not None:
        headers.append((b"x-lamina-threshold", b"%.4f" % cache.threshold))
    if cache.p_correct is not None and cache.p_required is not None:
        headers.append((b"x-lamina-p-correct", b"%.4f" % cache.p_correct))
        headers.append((b"x-lamina-p-required", b"%.4f" % cache.p_required))
    return headers


def _cache_status(notes: Notes, age_s: float) -> bytes:
    """Write RFC 9211's field: a call that shared another one's flight was forwarded, so it is no `hit` there."""
    if notes.cache.is_collapsed:
        return b"lamina; fwd=miss; collapsed"
    if notes.cache.ttl_s is None:
        return b"lamina; hit"
    detail = b"; detail=alias" if notes.cache.is_alias else b""
    return b"lamina; hit; ttl=%d%s" % (notes.cache.ttl_s - age_s, detail)


def _plain(cost_usd: float) -> bytes:
    """Write an amount without an exponent, to a ten-billionth of a dollar."""
    return (f"{cost_usd:.10f}".rstrip("0").rstrip(".") or "0").encode()


def _seconds_of(text: str) -> float:
    return float(text[:12]) if text.isascii() and text.isdigit() else 0.0


def _threshold_of(text: str) -> float:
    try:
        threshold = float(text)
    except ValueError:
        threshold = float("nan")
    if not -1.0 <= threshold <= 1.0:
        raise InvalidRequest(
            f"Invalid 'x-lamina-threshold': expected a cosine between -1 and 1, but got '{text[:32]}'.",
            param="x-lamina-threshold",
        )
    return threshold


def _tags_of(text: str) -> tuple[str, ...]:
    """Read tags parted by commas, each once, in order."""
    tags = tuple(sorted({tag.strip() for tag in text.split(",")} - {""}))
    if len(tags) > MAX_TAGS or not all(is_tag(tag) for tag in tags):
        raise InvalidRequest(
            f"Invalid 'x-lamina-cache-tags': expected at most {MAX_TAGS} tags parted by commas, each of 1 to "
            f"{MAX_TAG_CHARS} visible ASCII characters.",
            param="x-lamina-cache-tags",
        )
    return tags


def is_tag(text: str) -> bool:
    """Tell whether a text can be a tag."""
    return len(text) <= MAX_TAG_CHARS and _TAG.fullmatch(text) is not None
