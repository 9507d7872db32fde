"""The outermost layer: one record per call, however the call ends."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from logging_layer.answer import Answer
from logging_layer.codec import encode
from logging_layer.content import ContentMode, masked, redact
from logging_layer.record import CallRecord, Content, Failure, Outcome, Phase
from logging_layer.stages import SPANS, stage_times
from orchestration.core import Call, Delta, Event, Finish, Handler, Notes
from orchestration.core.errors import Blocked, LaminaError
from orchestration.core.notes import ENGINE
from orchestration.core.tries import ROUTING, without_text

CLIENT_LEFT_STATUS = 499


class RecordSink(Protocol):
    """Take records without waiting and without raising."""

    def append(self, record: CallRecord) -> None:
        """Take one record."""
        ...


class CallWatcher(Protocol):
    """Hear of calls as they come and go; neither waits nor raises."""

    def began(self, call: Call) -> None:
        """Hear that a call came in."""
        ...

    def ended(self, record: CallRecord) -> None:
        """Hear how it ended."""
        ...


@dataclass(slots=True)
class _Seen:
    """What has passed through so far."""

    answer: Answer
    first_event_at: float | None = None
    first_content_at: float | None = None
    finish: Finish | None = None
    end: BaseException | None = None

    def see(self, event: Event, now: float) -> None:
        if self.first_event_at is None:
            self.first_event_at = now
        if isinstance(event, Delta):
            if self.first_content_at is None:
                self.first_content_at = now
            self.answer.add(event)
        elif isinstance(event, Finish):
            self.finish = event


class CallLog:
    """Write one record of each call to `spool`: answered, failed, blocked, or left by its client in any phase.

    `content` is `full`, `redacted` (structure and lengths, no texts) or `none`. In full mode every text passes
    through `mask` first, where one is given. At most `max_answer_chars` of an answer and `max_content_bytes` of a
    request are kept; the record says what was left out. A call whose `Finish` was handed on counts as answered.
    """

    def __init__(
        self,
        spool: RecordSink,
        *,
        content: str,
        worker: str,
        mask: Callable[[str], str] | None = None,
        max_answer_chars: int = 262_144,
        max_content_bytes: int = 1_048_576,
        clock: Callable[[], float] = time.monotonic,
        watcher: CallWatcher | None = None,
    ) -> None:
        self._spool = spool
        self._mode = ContentMode(content)
        self._worker = worker
        self._mask = mask
        self._max_answer_chars = max_answer_chars if self._mode is not ContentMode.NONE else 0
        self._max_content_bytes = max_content_bytes
        self._clock = clock
        self._watcher = watcher

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Hand the events on as they are."""
        seen = _Seen(Answer(max_chars=self._max_answer_chars))
        if self._watcher is not None:
            self._watcher.began(call)
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    seen.see(event, self._clock())
                    yield event
        except BaseException as exc:
            seen.end = exc
            raise
        finally:
            record = self._record(call, seen)
            seen.end = None  # its trace leads back here: a cycle with all that the call holds
            self._spool.append(record)
            if self._watcher is not None:
                self._watcher.ended(record)

    def _record(self, call: Call, seen: _Seen) -> CallRecord:
        request, notes = call.request, call.notes
        outcome, status = _outcome(seen)
        ttft_ms = _ms_since(call.started, seen.first_content_at)
        spans = notes.extra.get(SPANS, [])
        content, request_hash = self._content(call, seen.answer)
        return CallRecord(
            id=call.id,
            request_id=call.request_id,
            tenant=call.tenant,
            kind=request.kind,
            dialect=request.dialect,
            requested_model=request.model,
            is_streamed=request.is_streamed,
            worker=self._worker,
            received_at=call.received_at,
            duration_ms=_ms_since(call.started, self._clock()) or 0.0,
            outcome=outcome,
            phase=_phase(seen),
            status=status,
            request_hash=request_hash,
            content=content,
            ttft_ms=ttft_ms,
            overhead_ms=_overhead_ms(_ms_since(call.started, seen.first_event_at), notes),
            error=self._failure(seen),
            finish_reasons={str(choice): reason for choice, reason in seen.finish.reasons.items()}
            if seen.finish
            else {},
            model=notes.model,
            backend=notes.backend,
            is_fallback=notes.is_fallback,
            usage=seen.finish.usage if seen.finish else None,
            cost_usd=notes.cost_usd,
            num_chars=seen.answer.num_chars,
            num_vectors=seen.answer.num_vectors,
            user=self._words(request.fields.get("user")),
            session=self._words(_session(request.fields)),
            controls=call.controls,
            cache=notes.cache,  # no copy: the spool writes the record at once
            checks=tuple(notes.checks),
            attempts=tuple(notes.attempts),
            stages_ms=stage_times(notes),
            spans=tuple(spans),
            degraded=tuple(notes.degraded),
            extra=self._extra(notes),
            trace=call.trace,
        )

    def _content(self, call: Call, answer: Answer) -> tuple[Content, str]:
        """Give the content as the mode allows, and the hash of the request as it came."""
        try:
            canonical = encode(call.request.fields, is_canonical=True)
        except ValueError:  # nested so deeply that it cannot be written
            return Content(mode=self._mode, left_out=("request: nested too deeply",)), ""
        request_hash = hashlib.sha256(canonical).hexdigest()
        if self._mode is ContentMode.NONE:
            return Content(mode=self._mode), request_hash
        left_out = ["answer: too long"] if answer.is_truncated else []
        request: Mapping[str, Any] | None = call.request.fields
        if len(canonical) > self._max_content_bytes:
            request = None
            left_out.append("request: too long")
        return Content(
            mode=self._mode,
            request=self._shown(request),
            answer=self._shown(answer.choices()),
            left_out=tuple(left_out),
        ), request_hash

    def _shown(self, value: Any) -> Any:
        if self._mode is ContentMode.REDACTED:
            return [redact(item) for item in value] if isinstance(value, list) else redact(value)
        return masked(value, self._mask) if self._mask is not None else value

    def _failure(self, seen: _Seen) -> Failure | None:
        """Say why there is no answer; a foreign exception's words may hold anything, so only its type is kept."""
        if seen.finish is not None:
            return None
        match seen.end:
            case LaminaError() as error:
                words = self._words(error.message)
                return Failure(type=error.type, code=error.code or error.type, param=error.param, message=words)
            case None:
                return Failure(type="server_error", code="unfinished")
            case GeneratorExit() | asyncio.CancelledError():
                return None
            case other:
                return Failure(type="server_error", code=type(other).__name__)

    def _words(self, text: Any) -> str | None:
        """Give a text beside the content, what servers quote in their errors among them, as the mode allows."""
        if self._mode is not ContentMode.FULL or not isinstance(text, str) or not text:
            return None
        return text if self._mask is None else self._mask(text)

    def _extra(self, notes: Notes) -> Mapping[str, Any]:
        extra = {name: value for name, value in notes.extra.items() if name != SPANS}
        if self._mode is ContentMode.FULL:
            return extra
        routing = extra.pop(ROUTING, None)  # ids and counts, from which the decision is computed again
        times = {ENGINE: extra.pop(ENGINE)} if ENGINE in extra else {}
        return {**redact(extra), **times, **({} if routing is None else {ROUTING: without_text(routing)})}


def _outcome(seen: _Seen) -> tuple[Outcome, int]:
    if seen.finish is not None:
        return Outcome.ANSWERED, 200
    match seen.end:
        case GeneratorExit() | asyncio.CancelledError():
            return Outcome.CLIENT_LEFT, CLIENT_LEFT_STATUS
        case LaminaError() as error:
            is_block = isinstance(error, Blocked) or error.code == Blocked.code
            return (Outcome.BLOCKED if is_block else Outcome.ERROR), error.status
        case _:
            return Outcome.ERROR, 500


def _phase(seen: _Seen) -> Phase:
    if seen.finish is not None:
        return Phase.FINISHED
    return Phase.BEFORE_CONTENT if seen.first_content_at is None else Phase.STREAMING


def _overhead_ms(first_event_ms: float | None, notes: Notes) -> float | None:
    # A failed attempt's duration is all of it, a successful one's reaches to its first content.
    if first_event_ms is None:
        return None
    return round(max(first_event_ms - sum(attempt.duration_ms for attempt in notes.attempts), 0.0), 3)


def _session(fields: Mapping[str, Any]) -> Any:
    metadata = fields.get("metadata")
    return metadata.get("session_id") if isinstance(metadata, Mapping) else None


def _ms_since(begun: float, now: float | None) -> float | None:
    return None if now is None else round((now - begun) * 1000.0, 3)
