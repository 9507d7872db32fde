"""Traces posted to an OTLP endpoint: what its answer means, and how many it takes at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import httpx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # the library has no stubs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from logging_layer.otlp import export_request
from logging_layer.sink import Shipped, SinkDown, SinkRefused
from logging_layer.spans import Span

# In traces, of some eight spans each. MLflow lands 150 traces a second in batches of 512 spans and 260 in batches of
# 2,048 when it has the machine to itself, but a twentieth of that beside a busy engine.
_FIRST_BATCH = 64
_SMALLEST_BATCH = 8
_LARGEST_BATCH = 256
_QUICK_S = 5.0
_NOT_OUR_FAULT = frozenset({401, 403, 404, 408, 425, 429})
"""Statuses that say something about the server or its set-up, not about what was sent."""
_logger = logging.getLogger(__name__)


class OtlpPost:
    """Post batches of traces to one address; `who` names the server in errors."""

    def __init__(self, client: httpx.AsyncClient, path: str, *, who: str) -> None:
        self._client = client
        self._path = path
        self._who = who
        self._max_records = _FIRST_BATCH

    @property
    def max_records(self) -> int:
        """Bound a batch: halved when one took too long, or the same batch would do so for ever, then doubled again."""
        return self._max_records

    async def send(
        self,
        records: Sequence[Shipped],
        *,
        lay_out: Callable[[Shipped], Sequence[Span]],
        headers: Mapping[str, str],
    ) -> None:
        """Send one batch, which the server takes whole or not at all; raises `SinkDown` or `SinkRefused`."""
        try:
            body = export_request([span for shipped in records for span in lay_out(shipped)])
        except (KeyError, TypeError, ValueError) as exc:
            raise SinkRefused(f"records cannot be shown as traces: {exc!r}") from exc
        begun = time.monotonic()
        try:
            sent = {"content-type": "application/x-protobuf", **headers}
            response = await self._client.post(self._path, content=body, headers=sent)
        except httpx.TimeoutException as exc:
            self._max_records = max(self._max_records // 2, _SMALLEST_BATCH)
            raise SinkDown(f"{self._who} took too long for {len(records)} traces") from exc
        except httpx.HTTPError as exc:
            raise SinkDown(f"{self._who} cannot be reached: {exc!r}") from exc
        if not response.is_success:
            raise self._error(response)
        self._look_at(response)
        if len(records) == self._max_records and time.monotonic() - begun < _QUICK_S:
            self._max_records = min(self._max_records * 2, _LARGEST_BATCH)

    def _look_at(self, response: httpx.Response) -> None:
        """Say what a server that took a batch left out of it: the protocol forbids sending it again."""
        if not response.headers.get("content-type", "").startswith("application/x-protobuf"):
            return
        try:
            partial = ExportTraceServiceResponse.FromString(response.content).partial_success
        except DecodeError:
            return
        if partial.rejected_spans:
            _logger.warning(
                "otlp.rejected who=%s spans=%d: %s", self._who, partial.rejected_spans, partial.error_message
            )

    def _error(self, response: httpx.Response) -> Exception:
        said = f"{self._who} answered {response.status_code}: {response.text[:200]}"
        is_refusal = 400 <= response.status_code < 500 and response.status_code not in _NOT_OUR_FAULT
        return SinkRefused(said) if is_refusal else SinkDown(said)
