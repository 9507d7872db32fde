"""The calls of one worker while they run and a while after, for whoever watches."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from logging_layer.content import ContentMode
from logging_layer.record import CallRecord, Outcome
from orchestration.core import CacheNote, Call, Usage

MAX_ENDED = 200
MAX_RUNNING_SHOWN = 100
MAX_QUESTION_CHARS = 160
Shown = dict[str, Any]


class LiveCalls:
    """Know what runs and the last `max_ended` calls that ended. Implements `logging_layer.call_log.CallWatcher`.

    No text of a call is kept, but the first words of its question where content is logged in full.
    """

    def __init__(self, worker: str, *, max_ended: int = MAX_ENDED, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker = worker
        self._boot = secrets.token_hex(4)
        self._clock = clock
        self._running: dict[str, Call] = {}
        self._ended: deque[tuple[int, Shown]] = deque(maxlen=max_ended)
        self._number = 0

    def began(self, call: Call) -> None:
        """Hear that a call came in."""
        self._running[call.id] = call

    def ended(self, record: CallRecord) -> None:
        """Hear how it ended."""
        self._running.pop(record.id, None)
        self._number += 1
        self._ended.append((self._number, _shown(record)))

    def view(self, seen: Mapping[str, int]) -> Shown:
        """Give what runs, the newest first, and what ended since `seen`, which is `{name: number}` of earlier views.

        `name` is of this run of the worker, so that one who saw another run gets everything.
        """
        name = f"{self._worker}/{self._boot}"
        after = seen.get(name, 0)
        running = list(self._running.values())[: -MAX_RUNNING_SHOWN - 1 : -1]
        return {
            "name": name,
            "number": self._number,
            "num_running": len(self._running),
            "running": [self._as_running(call) for call in running],
            "ended": [shown for number, shown in self._ended if number > after],
        }

    def _as_running(self, call: Call) -> Shown:
        notes = call.notes
        return {
            "id": call.id,
            "worker": self._worker,
            "received_at": call.received_at,
            "duration_ms": round((self._clock() - call.started) * 1000.0, 1),
            "tenant": call.tenant,
            "kind": call.kind.value,
            "dialect": call.request.dialect,
            "requested_model": call.request.model,
            "model": notes.model,
            "backend": notes.backend,
            "is_streamed": call.request.is_streamed,
            "num_attempts": len(notes.attempts),
            "cache": cache_shown(notes.cache),
        }


def cache_shown(cache: CacheNote) -> Shown:
    """Say how the caches decided, the similarity against the bar that held."""
    candidates = [candidate.similarity for candidate in cache.candidates]
    return {
        "status": cache.status.value,
        "reason": cache.reason,
        "similarity": cache.similarity if cache.similarity is not None else max(candidates, default=None),
        "threshold": cache.threshold,
        "policy": cache.policy,
        "is_collapsed": cache.is_collapsed,
        "was_stored": cache.was_stored,
        "store_reason": cache.store_reason,
    }


def layer_of(*, outcome: str, cache_status: str, backend: str | None, error_code: str | None) -> str:
    """Name the layer that gave the answer, or that kept it from being given."""
    if outcome == Outcome.BLOCKED:
        return "checks"
    if outcome == Outcome.ERROR and error_code in ("rate_limit_exceeded", "insufficient_quota", "budget_exceeded"):
        return "limits"
    if cache_status in ("exact", "semantic"):
        return cache_status
    return "backend" if backend is not None or outcome == Outcome.ANSWERED else "none"


def _shown(record: CallRecord) -> Shown:
    usage = record.usage or Usage(0, 0)
    error_code = record.error.code if record.error is not None else None
    return {
        "id": record.id,
        "worker": record.worker,
        "received_at": record.received_at,
        "duration_ms": record.duration_ms,
        "tenant": record.tenant,
        "kind": record.kind.value,
        "dialect": record.dialect,
        "requested_model": record.requested_model,
        "model": record.model,
        "backend": record.backend,
        "is_streamed": record.is_streamed,
        "is_fallback": record.is_fallback,
        "num_attempts": len(record.attempts),
        "layer": layer_of(
            outcome=record.outcome, cache_status=record.cache.status, backend=record.backend, error_code=error_code
        ),
        "outcome": record.outcome.value,
        "status": record.status,
        "error_code": error_code,
        "finish_reasons": list(record.finish_reasons.values()),
        "cache": cache_shown(record.cache),
        "ttft_ms": record.ttft_ms,
        "overhead_ms": record.overhead_ms,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost_usd": record.cost_usd,
        "checks": [note.check for note in record.checks if note.verdict != "pass"],
        "degraded": list(record.degraded),
        "question": question_of(record.content.request) if record.content.mode is ContentMode.FULL else None,
    }


def question_of(request: Mapping[str, Any] | None) -> str | None:
    """Give the first words of what was asked last."""
    fields = request or {}
    asked = fields.get("messages") or fields.get("input") or fields.get("prompt") or fields.get("query")
    if isinstance(asked, list):
        asked = asked[-1] if asked else None
    if isinstance(asked, Mapping):
        asked = asked.get("content")
    if isinstance(asked, list):
        texts = [part.get("text") for part in asked if isinstance(part, Mapping)]
        asked = " ".join(text for text in texts if isinstance(text, str))
    if not isinstance(asked, str) or not asked:
        return None
    words = " ".join(asked[: 4 * MAX_QUESTION_CHARS].split())
    return words if len(words) <= MAX_QUESTION_CHARS else words[: MAX_QUESTION_CHARS - 1] + "\u2026"
