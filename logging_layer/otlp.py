"""Spans as an OTLP request, in protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from logging_layer.spans import Span, SpanKind

_MAX_INT64 = 2**63 - 1
_KINDS = {
    SpanKind.INTERNAL: trace_pb2.Span.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: trace_pb2.Span.SPAN_KIND_SERVER,
    SpanKind.CLIENT: trace_pb2.Span.SPAN_KIND_CLIENT,
}


def export_request(spans: Sequence[Span]) -> bytes:
    """Write the body of `POST /v1/traces`."""
    resource = Resource(attributes=_attributes({"service.name": "lamina"}))
    scope_spans = trace_pb2.ScopeSpans(spans=[_span(span) for span in spans])
    resource_spans = trace_pb2.ResourceSpans(resource=resource, scope_spans=[scope_spans])
    body: bytes = ExportTraceServiceRequest(resource_spans=[resource_spans]).SerializeToString()
    return body


def _span(span: Span) -> trace_pb2.Span:
    return trace_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        name=_text(span.name),
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
        events=[
            trace_pb2.Span.Event(
                name=_text(moment.name), time_unix_nano=moment.at_ns, attributes=_attributes(moment.attributes)
            )
            for moment in span.moments
        ],
        status=trace_pb2.Status(
            code=trace_pb2.Status.STATUS_CODE_ERROR if span.error else trace_pb2.Status.STATUS_CODE_OK,
            message=_text(span.error or ""),
        ),
    )


def _attributes(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes.items() if value is not None]


def _value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and abs(value) <= _MAX_INT64:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list | tuple):
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    return AnyValue(string_value=_text(str(value)))


def _text(text: str) -> str:
    """Replace lone surrogates, which protobuf takes in no text."""
    return text.encode("utf-8", "replace").decode()
