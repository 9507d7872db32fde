"""A record as a trace: one root, a span for each layer that was reached, and one for each try at a backend."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from logging_layer import names
from logging_layer.codec import encode
from orchestration.core.notes import ENGINE
from orchestration.core.trace_context import root_span_id_of

Attributes = dict[str, Any]
MAX_TEXT_CHARS = 16_384
_ENGINE_TIMES = ("queued", "admitted", "first_token", "finished")
_MAX_ID_CHARS = 250  # MLflow refuses a whole batch over a longer session


class SpanKind(Enum):
    """What a span is to the processes around it, in OpenTelemetry's words."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened inside a span."""

    name: str
    at_ns: int
    attributes: Attributes


@dataclass(slots=True)
class Span:
    """One span; ids are 8 and 16 bytes, derived from the call's id, so that the same record is the same trace."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start_ns: int
    end_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    error: str | None = None


def trace_id_of(call_id: str) -> bytes:
    """Derive the trace's id from the call's; MLflow shows it as `tr-` and its 32 hexadecimal digits."""
    return hashlib.blake2b(call_id.encode(), digest_size=16).digest()


def spans_of(record: Mapping[str, Any], *, is_in_callers_trace: bool = False, weight: float = 1.0) -> list[Span]:
    """Lay out a record's spans: each layer inside the one before it, tries at backends inside the last one.

    A call's trace is its own, with the caller's named on it, or a part of the caller's, where it came with one.
    `weight` is how many calls this one stands for where not all of them are shown; summed over them it is their number.
    """
    trace = _Trace(record, record.get("trace") if is_in_callers_trace else None)
    root = trace.root(weight)
    layers = [span for span in record["spans"] if "start_ms" in span]
    parent = root
    for layer in layers:
        parent = trace.layer(layer, parent)
    last = layers[-1] if layers else {"start_ms": 0.0, "first_ms": record["ttft_ms"]}
    trace.attempts(parent, last)
    trace.engine()
    trace.blame()
    return trace.spans


class _Trace:
    """One record's spans while they are laid out."""

    def __init__(self, record: Mapping[str, Any], caller: Mapping[str, Any] | None) -> None:
        self._record = record
        self._trace_id = bytes.fromhex(caller["trace_id"]) if caller else trace_id_of(record["id"])
        self._parent_id = bytes.fromhex(caller["parent_id"]) if caller else b""
        self._begin_ns = int(record["received_at"] * 1e9)
        self._end_ms = record["duration_ms"]
        self._operation = names.OPERATIONS.get(record["kind"], record["kind"])
        self.spans: list[Span] = []

    def root(self, weight: float) -> Span:
        record = self._record
        span = self._add(f"{self._operation} {record['requested_model']}", self._parent_id, 0.0, self._end_ms)
        span.span_id = root_span_id_of(record["id"])
        span.kind = SpanKind.SERVER
        span.attributes = {
            names.MLFLOW_SPAN_TYPE: "CHAIN",
            names.CALL: record["id"],
            names.OUTCOME: record["outcome"],
            names.TRACE: (record.get("trace") or {}).get("trace_id"),
            names.SAMPLE_WEIGHT: weight,
            names.USER: (record["user"] or record["tenant"])[:_MAX_ID_CHARS],
            names.SESSION: record["session"][:_MAX_ID_CHARS] if record["session"] else None,
            "lamina.status": record["status"],
            "lamina.phase": record["phase"],
            "lamina.worker": record["worker"],
            "lamina.overhead_ms": record["overhead_ms"],
            "lamina.degraded": list(record["degraded"]) or None,
            **({} if record["spans"] else {f"lamina.stage_ms.{name}": ms for name, ms in record["stages_ms"].items()}),
            **self._tags(weight),
            **_texts(record),
        }
        return span

    def layer(self, layer: Mapping[str, Any], parent: Span) -> Span:
        span = self._add(layer["name"], parent.span_id, layer["start_ms"], layer.get("end_ms"))
        span.attributes = {names.LAYER: layer["name"], "lamina.first_ms": layer.get("first_ms")}
        if layer["name"].endswith("_cache"):
            span.attributes.update(_cache_attributes(self._record["cache"], is_semantic="semantic" in layer["name"]))
        if layer["name"].endswith("_checks"):
            self._add_checks(span, stage=layer["name"].removesuffix("_checks"))
        return span

    def attempts(self, parent: Span, last: Mapping[str, Any]) -> None:
        """Add the tries: failed ones one after another, and the one that answered up to its first content and on."""
        begin_ms = last["start_ms"]
        for number, attempt in enumerate(self._record["attempts"]):
            is_answer = attempt["error"] is None
            if is_answer and last.get("first_ms") is not None:  # waits between tries are not in the record
                begin_ms = max(begin_ms, last["first_ms"] - attempt["duration_ms"])
            end_ms = last.get("end_ms") if is_answer else begin_ms + attempt["duration_ms"]
            span = self._add(f"{self._operation} {attempt['model']}", parent.span_id, begin_ms, end_ms, number=number)
            span.kind = SpanKind.CLIENT
            span.error = attempt["error"]
            span.attributes = self._attempt_attributes(attempt, is_answer=is_answer)
            begin_ms += attempt["duration_ms"]

    def engine(self) -> None:
        """Add a span for each sequence of an engine of ours, inside the last try, with when things happened to it."""
        parent = self.spans[-1]
        for number, told in enumerate(self._record["extra"].get(ENGINE, ())):
            begin_ms = told["submitted_ms"]
            end_ms = begin_ms + told["finished"] if "finished" in told else None
            span = self._add("engine", parent.span_id, begin_ms, end_ms, number=number)
            span.start_ns = min(max(span.start_ns, parent.start_ns), parent.end_ns)
            span.end_ns = min(max(span.end_ns, span.start_ns), parent.end_ns)
            preempted = told.get("preempted", ())
            happened = [(told[name], name) for name in _ENGINE_TIMES if name in told]
            span.attributes = {names.ENGINE + f"{name}_ms": at_ms for at_ms, name in happened}
            span.attributes[names.ENGINE + "preemptions"] = len(preempted)
            for at_ms, name in sorted([*happened, *((at_ms, "preempted") for at_ms in preempted)]):
                span.moments.append(Moment(name, span.start_ns + int(at_ms * 1e6), {}))

    def blame(self) -> None:
        """Mark the root of a call that failed, and the innermost span, unless a failed try explains it."""
        error = self._record["error"]
        if error is None:
            return
        self.spans[0].error = error["message"] or error["code"]
        if not any(span.error for span in self.spans[1:]):
            self.spans[-1].error = error["code"]
        for span in self.spans:
            if span.error:
                span.attributes.setdefault(names.ERROR_TYPE, error["code"])

    def _attempt_attributes(self, attempt: Mapping[str, Any], *, is_answer: bool) -> Attributes:
        record = self._record
        attributes: Attributes = {
            names.OPERATION: self._operation,
            names.PROVIDER: attempt["backend"],
            names.REQUEST_MODEL: attempt["model"],
            names.REQUEST_STREAM: record["is_streamed"],
            names.ERROR_TYPE: attempt["error"],
        }
        if not is_answer:
            return attributes
        fields = record["content"]["request"] or {}
        usage = record["usage"] or {}
        return {
            **attributes,
            **{name: fields[key] for key, name in names.REQUEST_FIELDS.items() if _is_number(fields.get(key))},
            names.RESPONSE_MODEL: record["model"],
            names.FINISH_REASONS: list(record["finish_reasons"].values()) or None,
            names.TIME_TO_FIRST_CHUNK: attempt["duration_ms"] / 1000.0,
            names.INPUT_TOKENS: usage.get("prompt_tokens"),
            names.OUTPUT_TOKENS: usage.get("completion_tokens"),
            names.CACHED_TOKENS: usage.get("cached_tokens") or None,
            names.REASONING_TOKENS: usage.get("reasoning_tokens") or None,
            names.MLFLOW_COST: _json({"total_cost": record["cost_usd"]}) if record["cost_usd"] is not None else None,
        }

    def _tags(self, weight: float) -> Attributes:
        record = self._record
        tags = {
            "lamina.call": record["id"],
            "lamina.tenant": record["tenant"],
            "lamina.outcome": record["outcome"],
            "lamina.cache": record["cache"]["status"],
            "lamina.backend": record["backend"],
            "lamina.model": record["requested_model"],
            "lamina.trace": (record.get("trace") or {}).get("trace_id"),
            "lamina.sample_weight": f"{weight:g}",
        }
        return {names.MLFLOW_TAG + name: value for name, value in tags.items() if value}

    def _add_checks(self, span: Span, *, stage: str) -> None:
        for check in self._record["checks"]:
            if check["stage"] == stage:
                attributes = {names.CHECK + name: value for name, value in check.items() if value is not None}
                span.moments.append(Moment(f"check {check['check']}", span.end_ns, attributes))

    def _add(self, name: str, parent_id: bytes, start_ms: float, end_ms: float | None, *, number: int = 0) -> Span:
        seed = f"{self._record['id']}/{len(self.spans)}/{name}/{number}"
        end_ms = self._end_ms if end_ms is None else min(end_ms, self._end_ms)
        span = Span(
            trace_id=self._trace_id,
            span_id=hashlib.blake2b(seed.encode(), digest_size=8).digest(),
            parent_id=parent_id,
            name=name,
            start_ns=self._begin_ns + int(min(start_ms, end_ms) * 1e6),
            end_ns=self._begin_ns + int(end_ms * 1e6),
        )
        self.spans.append(span)
        return span


def _cache_attributes(cache: Mapping[str, Any], *, is_semantic: bool) -> Attributes:
    shown = ["status", "reason", "entry", "entry_call", "was_stored", "store_reason"]
    shown += (
        ["similarity", "threshold", "policy", "partition", "embedder", "index_generation"]
        if is_semantic
        else ["key", "key_version", "is_collapsed", "ttl_s"]
    )
    attributes = {names.CACHE + name: cache[name] for name in shown}
    if is_semantic and cache["candidates"]:
        attributes[names.CACHE + "candidates"] = _json(cache["candidates"])
    return attributes


def _texts(record: Mapping[str, Any]) -> Attributes:
    """Give the request and the answer as MLflow previews them, where the log holds them in full."""
    content = record["content"]
    if content["mode"] != "full":
        return {}
    fields, answer = content["request"] or {}, content["answer"] or []
    asked = fields.get("messages") or fields.get("prompt") or fields.get("input")
    told = [{"role": "assistant", "content": choice.get("text", ""), **_beside_text(choice)} for choice in answer]
    return {
        names.INPUT_MESSAGES: _clipped(asked) if asked else None,
        names.OUTPUT_MESSAGES: _clipped(told) if told else None,
    }


def _beside_text(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in choice.items() if name not in ("index", "text")}


def _clipped(value: str | Sequence[Any]) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def _json(value: Any) -> str:
    return encode(value).decode()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
