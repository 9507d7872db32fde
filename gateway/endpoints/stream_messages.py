"""The JSON messages of `/v1/stream`: requests in, events out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.dialects import OpenAIChat
from gateway.dialects.sse import usage_fields
from gateway.error_body import error_body, status_of
from gateway.exchange import Exchange
from gateway.headers import controls_of, request_id_of
from orchestration.core import CacheStatus, Controls, Delta, Finish, Notes, Part, Request, Start
from orchestration.core.errors import InvalidRequest, LaminaError

HEADERS = ("cache-control", "x-lamina-namespace", "x-lamina-threshold", "x-request-id")
_TYPES = {Part.TEXT: "token", Part.REASONING: "reasoning", Part.REFUSAL: "refusal"}
_HITS = (CacheStatus.EXACT, CacheStatus.SEMANTIC)
Message = Mapping[str, Any]


def request_of(fields: dict[str, Any], *, models: Sequence[str]) -> Request:
    """Make the request of a message: a chat request, or `prompt` with an optional `system` for a chat of one turn.

    Without a model the first of `models` is asked. Raises `InvalidRequest` that names the field.
    """
    prompt, system = fields.pop("prompt", None), fields.pop("system", None)
    if prompt is not None:
        if "messages" in fields:
            raise InvalidRequest("Give 'prompt' or 'messages', not both.", param="prompt")
        turns = [("system", system)] if system is not None else []
        fields["messages"] = [{"role": role, "content": _text(role, text)} for role, text in [*turns, ("user", prompt)]]
    elif system is not None:
        raise InvalidRequest("'system' goes with 'prompt'; a chat has it in its messages.", param="system")
    if "model" not in fields and models:
        fields["model"] = models[0]
    return OpenAIChat().parse(orjson.dumps({**fields, "stream": True}))


def headers_of_message(fields: dict[str, Any]) -> dict[bytes, bytes]:
    """Take what HTTP has in a request's headers out of a message; raises `InvalidRequest` for others than those.

    The socket's own headers do not count: browsers send a `Cache-Control` of theirs with every handshake.
    """
    given = fields.pop("headers", None) or {}
    if not isinstance(given, dict):
        raise InvalidRequest("Invalid 'headers': expected an object.", param="headers")
    found = {}
    for name, value in given.items():
        if name.lower() not in HEADERS or not isinstance(value, str):
            raise InvalidRequest(
                f"Invalid 'headers.{name[:64]}': a message has {', '.join(HEADERS)}, each a string.", param="headers"
            )
        found[name.lower().encode()] = value.encode("latin-1", "replace")
    return found


def controls_and_id(headers: Mapping[bytes, bytes]) -> tuple[Controls, str | None]:
    """Read the controls and the client's own id of the request."""
    return controls_of(headers), request_id_of(headers)


def start_message(exchange: Exchange, event: Start) -> Message:
    """Say who answers: the model, the backend, and the cache's part with its evidence."""
    notes = exchange.notes
    return {
        "type": "start",
        "call": exchange.id,
        "request_id": exchange.request_id,
        "model": event.model,
        "backend": notes.backend or event.backend,
        "cache": cache_fields(notes),
        "overhead_ms": round(exchange.overhead_s() * 1000.0, 3),
    }


def delta_messages(event: Delta) -> list[Message]:
    """Say a piece of the answer; what only another dialect can say has no message."""
    where: dict[str, Any] = {"choice": event.choice} if event.choice else {}
    if event.part in _TYPES:
        extra = where if event.logprobs is None else {**where, "logprobs": event.logprobs}
        return [{"type": _TYPES[event.part], "text": event.text, **extra}]
    if event.part is Part.TOOL_CALL:
        pieces = event.data if isinstance(event.data, list) else [event.data]
        return [{"type": "tool_call", "tool_calls": pieces, **where}]
    return []


def done_message(exchange: Exchange, event: Finish) -> Message:
    """Say how the answer ended, what was used, and what it cost."""
    notes, first = exchange.notes, exchange.first_event_at
    is_hit = notes.cache.status in _HITS
    reasons = {} if len(event.reasons) <= 1 else {"finish_reasons": {str(at): why for at, why in event.reasons.items()}}
    return {
        "type": "done",
        "call": exchange.id,
        "finish_reason": next(iter(event.reasons.values()), None),
        **reasons,
        "usage": None if event.usage is None else usage_fields(event.usage),
        "cache": notes.cache.status.value,
        "cost_usd": 0.0 if is_hit else notes.cost_usd,
        "ttft_ms": None if first is None else round((first - exchange.started) * 1000.0, 3),
        "duration_ms": round((time.monotonic() - exchange.started) * 1000.0, 3),
    }


def error_message(error: LaminaError, *, call: str | None) -> Message:
    """Say what went wrong, in OpenAI's shape; `call` is None where no call had begun."""
    wait_s = error.retry_after_s
    later = {} if wait_s is None else {"retry_after_ms": math.ceil(wait_s * 1000.0)}
    return {"type": "error", "call": call, "status": status_of(error), **orjson.loads(error_body(error)), **later}


def cache_fields(notes: Notes) -> Message:
    """Say the cache's part, without what does not apply."""
    cache = notes.cache
    age_s = None if cache.entry_created_at is None else max(0, int(time.time() - cache.entry_created_at))
    fields = {
        "status": cache.status.value,
        "reason": cache.reason,
        "entry": cache.entry,
        "similarity": cache.similarity,
        "threshold": cache.threshold,
        "age_s": age_s,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text(role: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        name = "prompt" if role == "user" else role
        raise InvalidRequest(f"Invalid '{name}': expected a string that is not empty.", param=name)
    return value
