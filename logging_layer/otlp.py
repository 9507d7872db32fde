"""Spans as an OTLP request, in protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from logging_layer.spans import Span, SpanKind

_MAX_INT64 = 2**63 - 1
_KINDS = {
    SpanKind.INTERNAL: trace_pb2.Span.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: trace_pb2.Span.SPAN_KIND_SERVER,
    SpanKind.CLIENT: trace_pb2.Span.SPAN_KIND_CLIENT,
}


class _KeyValues(Protocol):
    """Hold attributes; the library's own type has no stubs."""

    def add(self, *, key: str) -> KeyValue:
        """Add one, and give it."""
        ...


def export_request(spans: Sequence[Span]) -> bytes:
    """Write the body of `POST /v1/traces`: each part in its place, for the library copies what it is given."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    _fill(resource_spans.resource.attributes, {"service.name": "lamina"})
    written = resource_spans.scope_spans.add().spans
    for span in spans:
        _write(span, written.add())
    body: bytes = request.SerializeToString()
    return body


def _write(span: Span, out: trace_pb2.Span) -> None:
    out.trace_id, out.span_id, out.parent_span_id = span.trace_id, span.span_id, span.parent_id
    out.name = _text(span.name)
    out.kind = _KINDS[span.kind]
    out.start_time_unix_nano, out.end_time_unix_nano = span.start_ns, span.end_ns
    _fill(out.attributes, span.attributes)
    for moment in span.moments:
        event = out.events.add(name=_text(moment.name), time_unix_nano=moment.at_ns)
        _fill(event.attributes, moment.attributes)
    if span.error:
        out.status.code, out.status.message = trace_pb2.Status.STATUS_CODE_ERROR, _text(span.error)
    else:
        out.status.code = trace_pb2.Status.STATUS_CODE_OK


def _fill(out: _KeyValues, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        if value is not None:
            _put(value, out.add(key=key).value)


def _put(value: Any, out: AnyValue) -> None:
    if isinstance(value, str):
        out.string_value = _text(value)
    elif isinstance(value, bool):
        out.bool_value = value
    elif isinstance(value, int) and abs(value) <= _MAX_INT64:
        out.int_value = value
    elif isinstance(value, float):
        out.double_value = value
    elif isinstance(value, list | tuple):
        out.array_value.SetInParent()  # a list may be empty
        for item in value:
            _put(item, out.array_value.values.add())
    else:
        out.string_value = _text(str(value))


def _text(text: str) -> str:
    """Replace lone surrogates, which protobuf takes in no text."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
