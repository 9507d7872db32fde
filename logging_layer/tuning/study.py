"""A report as MLflow runs: one for the sweep, nested ones to compare policies, over MLflow's REST interface alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from logging_layer.spans import trace_id_of
from logging_layer.tuning.page import page_of
from logging_layer.tuning.report import Report
from logging_layer.tuning.shapes import expected_calibration_error
from logging_layer.tuning.sweep import Point

STEPS_PER_UNIT = 1000
"""A metric's step is 1,000 times the threshold, so that MLflow lays the curves of several runs over one another."""
_MAX_METRICS = 900  # MLflow takes 1,000 in one batch


class StudyFailed(Exception):
    """MLflow did not take the study; the message says what it answered."""


@dataclass(frozen=True, slots=True)
class Study:
    """Where a report was written: the run, and the address that shows its curves."""

    experiment_id: str
    run_id: str
    url: str


class StudyWriter:
    """Write reports to the MLflow server at `uri`. Traces of calls are linked in the experiment `call_experiment`."""

    def __init__(self, uri: str, *, call_experiment: str = "lamina", timeout_s: float = 30.0) -> None:
        self._uri = uri.rstrip("/")
        self._call_experiment = call_experiment
        self._client = httpx.AsyncClient(base_url=self._uri, timeout=timeout_s)

    async def write(self, report: Report, *, params: Mapping[str, str]) -> Study:
        """Write one parent run with the tuned policy, and a nested run for each policy where there are several.

        Raises `StudyFailed`; a run that was begun is then marked as failed.
        """
        experiment = await self._experiment(f"semcache-threshold/{report.dataset}")
        calls = await self._experiment(self._call_experiment)
        name = f"sweep {time.strftime('%Y-%m-%d %H:%M:%S')}"
        run, artifacts = await self._begin(experiment, name, parent=None)
        try:
            await self._log(run, report.points, params={**_params(report), **params}, finals=_finals(report))
            await self._attach(artifacts, report, calls)
            if len(report.policies) > 1:
                for policy, points in report.policies.items():
                    await self._nest(experiment, run, policy, points)
            await self._end(run, "FINISHED")
        except StudyFailed:
            await self._end(run, "FAILED")
            raise
        return Study(experiment, run, f"{self._uri}/#/experiments/{experiment}/runs/{run}/model-metrics")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _nest(self, experiment: str, parent: str, policy: str, points: Sequence[Point]) -> None:
        run, _ = await self._begin(experiment, policy, parent=parent)
        await self._log(run, points, params={"policy": policy}, finals={})
        await self._end(run, "FINISHED")

    async def _attach(self, artifacts: str, report: Report, call_experiment: str) -> None:
        def trace_url(call: str) -> str:
            trace = f"tr-{trace_id_of(call).hex()}"
            return f"{self._uri}/#/experiments/{call_experiment}/traces?traceId={trace}"

        await self._put(artifacts, "tradeoff.html", page_of(report, trace_url=trace_url), "text/html")
        await self._put(artifacts, "sweep.json", json.dumps(report.to_json(), indent=1), "application/json")

    async def _experiment(self, name: str) -> str:
        response = await self._send(
            "GET", "/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": name}, may_miss=True
        )
        if response is not None:
            return str(response["experiment"]["experiment_id"])
        made = await self._send("POST", "/api/2.0/mlflow/experiments/create", json={"name": name})
        return str((made or {})["experiment_id"])

    async def _begin(self, experiment: str, name: str, *, parent: str | None) -> tuple[str, str]:
        tags = [{"key": "mlflow.parentRunId", "value": parent}] if parent else []
        body = {"experiment_id": experiment, "run_name": name, "start_time": _now_ms(), "tags": tags}
        run = ((await self._send("POST", "/api/2.0/mlflow/runs/create", json=body)) or {})["run"]
        return str(run["info"]["run_id"]), str(run["info"]["artifact_uri"])

    async def _end(self, run: str, status: str) -> None:
        body = {"run_id": run, "status": status, "end_time": _now_ms()}
        await self._send("POST", "/api/2.0/mlflow/runs/update", json=body)

    async def _log(
        self, run: str, points: Sequence[Point], *, params: Mapping[str, str], finals: Mapping[str, float]
    ) -> None:
        now = _now_ms()
        metrics = [_metric(key, value, point, now) for point in points for key, value in _curves(point).items()]
        metrics += [{"key": key, "value": value, "timestamp": now, "step": 0} for key, value in finals.items()]
        head = {"run_id": run, "params": [{"key": key, "value": value[:500]} for key, value in params.items()]}
        for first in range(0, max(len(metrics), 1), _MAX_METRICS):
            batch = {**head, "metrics": metrics[first : first + _MAX_METRICS]}
            await self._send("POST", "/api/2.0/mlflow/runs/log-batch", json=batch)
            head = {"run_id": run}

    async def _put(self, artifacts: str, name: str, text: str, kind: str) -> None:
        place = urlsplit(artifacts)
        if place.scheme != "mlflow-artifacts":
            raise StudyFailed(
                f"MLflow keeps its artifacts at {artifacts}, which only it can write to; "
                "start it with --artifacts-destination, so that it takes them over HTTP"
            )
        path = f"/api/2.0/mlflow-artifacts/artifacts{quote(place.path)}/{name}"
        await self._send("PUT", path, content=text.encode(), headers={"content-type": kind})

    async def _send(self, method: str, path: str, *, may_miss: bool = False, **how: Any) -> dict[str, Any] | None:
        """Return MLflow's answer, None for something missing that may be; raises `StudyFailed`."""
        try:
            response = await self._client.request(method, path, **how)
        except httpx.HTTPError as exc:
            raise StudyFailed(f"MLflow at {self._uri} cannot be reached: {exc!r}") from exc
        if may_miss and response.status_code == httpx.codes.NOT_FOUND:
            return None
        if not response.is_success:
            raise StudyFailed(f"MLflow answered {response.status_code} to {path}: {response.text[:200]}")
        return dict(response.json()) if response.content else {}


def _curves(point: Point) -> dict[str, float]:
    """Name what is drawn over the threshold; the upper ends of intervals stand beside their curves."""
    return {
        "hit_rate": point.hit_rate.value,
        "wrong_per_request": point.wrong_per_request.value,
        "wrong_per_request_hi95": point.wrong_per_request.high,
        "wrong_per_hit": point.wrong_per_hit.value,
        "wrong_per_hit_hi95": point.wrong_per_hit.high,
        "wrong_per_trap": point.wrong_per_trap.value,
        "wrong_per_trap_hi95": point.wrong_per_trap.high,
        "value_usd_per_1000": point.value_usd,
        "value_usd_per_1000_lo95": point.value_low_usd,
    }


def _metric(key: str, value: float, point: Point, now_ms: int) -> dict[str, Any]:
    return {"key": key, "value": value, "timestamp": now_ms, "step": round(STEPS_PER_UNIT * point.threshold)}


def _params(report: Report) -> dict[str, str]:
    best = report.recommended
    return {
        "dataset": report.dataset,
        "requests": str(report.num_rows),
        "labelled": str(report.num_labelled),
        "cost_call_usd": f"{report.prices.call_usd:g}",
        "cost_wrong_usd": f"{report.prices.wrong_usd:g}",
        "required_p_correct": f"{report.prices.required_correct:.4f}",
        "recommended_threshold": f"{best.threshold:g}" if best else "none",
    }


def _finals(report: Report) -> dict[str, float]:
    best, error = report.recommended, expected_calibration_error(report.reliability)
    finals = {"recommended_value_usd_per_1000": best.value_usd if best else 0.0}
    if best:
        finals["recommended_threshold"] = best.threshold
    if error is not None:
        finals["expected_calibration_error"] = error
    return finals


def _now_ms() -> int:
    return int(time.time() * 1000)
