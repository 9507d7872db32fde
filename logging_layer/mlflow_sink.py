"""Records into MLflow: OTLP batches over HTTP, without a line of MLflow's own code."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from logging_layer.mlflow_api import find_experiment
from logging_layer.otlp_post import OtlpPost
from logging_layer.sink import Shipped, SinkDown, SinkRefused
from logging_layer.spans import Span, spans_of


class MlflowSink:
    """Send records as traces of one experiment, found by name or made; the same record again is the same trace.

    Which records it is sent is not its matter, see `sampling.py`.
    """

    name = "mlflow"

    def __init__(self, uri: str, *, experiment: str, timeout_s: float = 60.0) -> None:
        self._experiment = experiment
        self._experiment_id: str | None = None
        self._client = httpx.AsyncClient(base_url=uri.rstrip("/"), timeout=httpx.Timeout(timeout_s, connect=5.0))
        self._post = OtlpPost(self._client, "/v1/traces", who="MLflow")

    @property
    def max_records(self) -> int:
        """Bound a batch by what MLflow has shown that it takes."""
        return self._post.max_records

    async def send(self, records: Sequence[Shipped]) -> None:
        """Send one batch, which MLflow takes whole or not at all."""
        if self._experiment_id is None:
            self._experiment_id = await find_experiment(self._client, self._experiment)
        try:
            headers = {"x-mlflow-experiment-id": self._experiment_id}
            await self._post.send(records, lay_out=_laid_out, headers=headers)
        except (SinkDown, SinkRefused):
            self._experiment_id = None  # it may have been deleted meanwhile
            raise

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _laid_out(shipped: Shipped) -> list[Span]:
    return spans_of(shipped.record, weight=shipped.weight)
