"""Records into MLflow: OTLP batches over HTTP, without a line of MLflow's own code."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx

from logging_layer.mlflow_api import find_experiment
from logging_layer.otlp import export_request
from logging_layer.sink import Shipped, SinkDown, SinkRefused
from logging_layer.spans import spans_of

# In traces, of some eight spans each. MLflow lands 150 traces a second in batches of 512 spans and 260 in batches of
# 2,048 when it has the machine to itself, but a twentieth of that beside a busy engine.
_FIRST_BATCH = 64
_SMALLEST_BATCH = 8
_LARGEST_BATCH = 256
_QUICK_S = 5.0
_NOT_OUR_FAULT = frozenset({401, 403, 404, 408, 425, 429})
"""Statuses that say something about the server or its set-up, not about what was sent."""


class MlflowSink:
    """Send records as traces of one experiment, found by name or made; the same record again is the same trace.

    Which records it is sent is not its matter, see `sampling.py`.
    """

    name = "mlflow"

    def __init__(self, uri: str, *, experiment: str, timeout_s: float = 60.0) -> None:
        self._experiment = experiment
        self._experiment_id: str | None = None
        self._max_records = _FIRST_BATCH
        self._client = httpx.AsyncClient(base_url=uri.rstrip("/"), timeout=httpx.Timeout(timeout_s, connect=5.0))

    @property
    def max_records(self) -> int:
        """Bound a batch: halved when one took too long, or the same batch would do so for ever, then doubled again."""
        return self._max_records

    async def send(self, records: Sequence[Shipped]) -> None:
        """Send one batch, which MLflow takes whole or not at all."""
        try:
            body = export_request([span for shipped in records for span in spans_of(shipped.record)])
        except (KeyError, TypeError, ValueError) as exc:
            raise SinkRefused(f"records cannot be shown as traces: {exc!r}") from exc
        if self._experiment_id is None:
            self._experiment_id = await find_experiment(self._client, self._experiment)
        headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": self._experiment_id}
        begun = time.monotonic()
        try:
            response = await self._client.post("/v1/traces", content=body, headers=headers)
        except httpx.TimeoutException as exc:
            self._max_records = max(self._max_records // 2, _SMALLEST_BATCH)
            raise SinkDown(f"MLflow took too long for {len(records)} traces") from exc
        except httpx.HTTPError as exc:
            raise SinkDown(f"MLflow cannot be reached: {exc!r}") from exc
        if response.is_success:
            if len(records) == self._max_records and time.monotonic() - begun < _QUICK_S:
                self._max_records = min(self._max_records * 2, _LARGEST_BATCH)
            return
        self._experiment_id = None  # it may have been deleted meanwhile
        raise _error(response)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _error(response: httpx.Response) -> Exception:
    said = f"MLflow answered {response.status_code}: {response.text[:200]}"
    is_refusal = 400 <= response.status_code < 500 and response.status_code not in _NOT_OUR_FAULT
    return SinkRefused(said) if is_refusal else SinkDown(said)
