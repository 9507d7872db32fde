"""Records into any OpenTelemetry collector, over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import httpx

from logging_layer import names
from logging_layer.otlp_post import OtlpPost
from logging_layer.sink import Shipped
from logging_layer.spans import Span, spans_of
from orchestration.core import Secret


class OtlpSink:
    """Send records as traces to `url` (`http://collector:4318/v1/traces`), with headers that nobody can print.

    Where a call came with a `traceparent`, its spans are part of the caller's trace. A collector that takes a batch
    twice has the same spans twice under the same ids.
    """

    def __init__(self, url: str, *, headers: Mapping[str, Secret], timeout_s: float = 30.0) -> None:
        self._headers = headers
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(timeout_s, connect=5.0))
        self._post = OtlpPost(self._client, url, who=f"the collector at {httpx.URL(url).host}")
        self.name = f"otlp_{hashlib.sha256(url.encode()).hexdigest()[:8]}"

    @property
    def max_records(self) -> int:
        """Bound a batch by what the collector has shown that it takes."""
        return self._post.max_records

    async def send(self, records: Sequence[Shipped]) -> None:
        """Send one batch."""
        headers = {name: secret.reveal() for name, secret in self._headers.items()}
        await self._post.send(records, lay_out=_for_anyone, headers=headers)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _for_anyone(shipped: Shipped) -> list[Span]:
    """Lay out a record without what MLflow's server alone reads."""
    spans = spans_of(shipped.record, is_in_callers_trace=True, weight=shipped.weight)
    for span in spans:
        span.attributes = {name: v for name, v in span.attributes.items() if not name.startswith(names.MLFLOW)}
    return spans
