"""What we ask of MLflow beside sending traces, over its REST interface: experiments, assessments, deletion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from logging_layer.sink import SinkDown

PAGE = 100
_TRACES = "/api/3.0/mlflow/traces"


async def find_experiment(client: httpx.AsyncClient, name: str) -> str:
    """Return an experiment's id, making it where there is none; raises `SinkDown`."""
    try:
        found = await client.get("/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": name})
        if found.status_code == httpx.codes.NOT_FOUND:
            made = await client.post("/api/2.0/mlflow/experiments/create", json={"name": name})
            return str(_answer(made)["experiment_id"])
        return str(_answer(found)["experiment"]["experiment_id"])
    except httpx.HTTPError as exc:
        raise SinkDown(f"MLflow cannot be reached: {exc!r}") from exc


class MlflowApi:
    """Read and write what stands beside the traces of one experiment; every method raises `SinkDown`."""

    def __init__(self, uri: str, *, experiment: str, timeout_s: float = 20.0) -> None:
        self._experiment = experiment
        self._experiment_id: str | None = None
        self._client = httpx.AsyncClient(base_url=uri.rstrip("/"), timeout=httpx.Timeout(timeout_s, connect=5.0))

    async def assessed(
        self, name: str, *, since_ms: int, token: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of the traces that carry feedback of this name, newest first, and the next page's token."""
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": await self._id()}}
        body: dict[str, Any] = {
            "locations": [place],
            "filter": f"feedback.{name} IS NOT NULL AND trace.timestamp_ms > {since_ms}",
            "order_by": ["timestamp_ms DESC"],
            "max_results": PAGE,
        }
        if token is not None:
            body["page_token"] = token
        page = await self._ask("POST", f"{_TRACES}/search", json=body) or {}
        return page.get("traces", []), page.get("next_page_token") or None

    async def trace_info(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace without its spans, None where MLflow has none."""
        answer = await self._ask("GET", f"{_TRACES}/{trace_id}", may_miss=True)
        return None if answer is None else dict(answer["trace"]["trace_info"])

    async def add_assessment(self, trace_id: str, assessment: Mapping[str, Any]) -> None:
        """Write an assessment onto a trace that is there."""
        body = {"assessment": {**assessment, "trace_id": trace_id}}
        await self._ask("POST", f"{_TRACES}/{trace_id}/assessments", json=body)

    async def change_assessment(self, trace_id: str, assessment_id: str, assessment: Mapping[str, Any]) -> None:
        """Replace the value and the rationale of an assessment."""
        body = {
            "assessment": {**assessment, "trace_id": trace_id, "assessment_id": assessment_id},
            "update_mask": "feedback,rationale",
        }
        await self._ask("PATCH", f"{_TRACES}/{trace_id}/assessments/{assessment_id}", json=body)

    async def delete_before(self, time_ms: int, *, limit: int) -> int:
        """Delete at most `limit` of the traces that began before a Unix time; returns how many there were."""
        body = {"experiment_id": await self._id(), "max_timestamp_millis": time_ms, "max_traces": limit}
        answer = await self._ask("POST", f"{_TRACES}/delete-traces", json=body)
        return int((answer or {}).get("traces_deleted", 0))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _id(self) -> str:
        if self._experiment_id is None:
            self._experiment_id = await find_experiment(self._client, self._experiment)
        return self._experiment_id

    async def _ask(self, method: str, path: str, *, json: Any = None, may_miss: bool = False) -> dict[str, Any] | None:
        try:
            response = await self._client.request(method, path, json=json)
        except httpx.HTTPError as exc:
            raise SinkDown(f"MLflow cannot be reached: {exc!r}") from exc
        if may_miss and response.status_code == httpx.codes.NOT_FOUND:
            return None
        if not response.is_success:
            self._experiment_id = None  # it may have been deleted meanwhile
        return _answer(response)


def _answer(response: httpx.Response) -> dict[str, Any]:
    """Return the answer's JSON; raises `SinkDown` for an error, or for what is no JSON."""
    if not response.is_success:
        raise SinkDown(f"MLflow answered {response.status_code}: {response.text[:200]}")
    try:
        return dict(response.json())
    except ValueError as exc:
        raise SinkDown(f"MLflow answered with what is no JSON: {response.text[:200]}") from exc
