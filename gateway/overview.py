"""The lists and sums of the admin side, which the page at `/` shows; on FastAPI, nothing here is on a call's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query
from fastapi.responses import Response

from gateway.admin_parts import AdminParts, Holder
from gateway.endpoints.health import Health
from gateway.limits.rules import WINDOWS_S
from gateway.live import layer_of, question_of
from logging_layer.listing import ListingDown, Wanted
from orchestration.core.errors import BackendUnavailable

Row = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=200)]
Window = Literal["1h", "1d", "30d"]
WRONG: dict[int | str, dict[str, Any]] = {400: {"description": "A parameter is wrong; `param` names it."}}
AWAY: dict[int | str, dict[str, Any]] = {**WRONG, 503: {"description": "The database does not answer."}}
_SHOWN = (
    *("id", "received_at", "worker", "tenant", "kind", "dialect", "requested_model", "model", "backend", "is_streamed"),
    *("is_fallback", "is_degraded", "outcome", "status", "error_code", "duration_ms", "ttft_ms", "overhead_ms"),
    *("prompt_tokens", "completion_tokens", "cost_usd"),
)


def overview_routes(admin: AdminParts, *, health: Health) -> APIRouter:
    """Return the routes below `/admin` that list and sum; the edge has looked at the key before."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.get("/status", summary="The parts, the processes, and what is in use", response_model=None)
    async def get_status() -> Response:
        return _json({**admin.facts(), "now": time.time(), "ready": await health.ask()})

    @router.get(
        "/calls", summary="Calls that ended, the newest first, page by page", response_model=None, responses=AWAY
    )
    async def list_calls(
        limit: Limit = 50,
        before: str | None = None,
        model: str | None = None,
        tenant: str | None = None,
        outcome: str | None = None,
        cache: str | None = None,
    ) -> Response:
        wanted = Wanted(before=before, model=model, tenant=tenant, outcome=outcome, cache=cache)
        return _json({"calls": await _rows(admin, wanted, limit)})

    @router.get(
        "/cache/decisions", summary="What the caches decided, and their shares", response_model=None, responses=AWAY
    )
    async def list_decisions(limit: Limit = 50, before: str | None = None, window: Window = "1d") -> Response:
        since = time.time() - WINDOWS_S[window]
        rows, sums = await asyncio.gather(
            _rows(admin, Wanted(before=before, is_decision=True), limit), _sums(admin, "cache_status", since)
        )
        return _json({"decisions": rows, "window": window, "by_status": sums})

    @router.get(
        "/spend", summary="What was spent in a window: by key, team and model", response_model=None, responses=AWAY
    )
    async def get_spend(window: Window = "1d") -> Response:
        since = time.time() - WINDOWS_S[window]
        tenants, models = await asyncio.gather(_sums(admin, "tenant", since), _sums(admin, "requested_model", since))
        keys = [{**row, **_holder_fields(admin.holder_of(row["tenant"]))} for row in tenants]
        return _json({"window": window, "since": since, "by_key": keys, "by_team": _by_team(keys), "by_model": models})

    return router


async def _rows(admin: AdminParts, wanted: Wanted, limit: int) -> list[Row]:
    try:
        found = await admin.listing.find(wanted, limit=limit)
    except ListingDown as exc:
        raise BackendUnavailable(f"Lists are not to be had right now: {exc}.") from exc
    return [{**_shown(row), **_holder_fields(admin.holder_of(row["tenant"]))} for row in found]


async def _sums(admin: AdminParts, by: str, since: float) -> list[Row]:
    try:
        return await admin.listing.sums(by, since=since)
    except ListingDown as exc:
        raise BackendUnavailable(f"Sums are not to be had right now: {exc}.") from exc


def _shown(row: Row) -> Row:
    """Show a row of SQL as the live feed shows its calls."""
    record: Mapping[str, Any] = row.get("record") or {}
    cache = record.get("cache") or {}
    content = record.get("content") or {}
    nearest = max((one["similarity"] for one in cache.get("candidates") or ()), default=None)
    return {
        **{name: row.get(name) for name in _SHOWN},
        "layer": layer_of(
            outcome=row["outcome"],
            cache_status=row["cache_status"] or "",
            backend=row["backend"],
            error_code=row["error_code"],
        ),
        "cache": {
            "status": row["cache_status"],
            "similarity": nearest if row["cache_similarity"] is None else row["cache_similarity"],
            "threshold": row["cache_threshold"],
            "entry": row["cache_entry"],
            "decision": (record.get("extra") or {}).get("semantic") if content.get("mode") == "full" else None,
            **{name: cache.get(name) for name in ("reason", "policy", "is_collapsed", "was_stored", "store_reason")},
        },
        "question": question_of(content.get("request")) if content.get("mode") == "full" else None,
    }


def _holder_fields(holder: Holder | None) -> Row:
    if holder is None:
        return {"key": None, "team": None}
    return {"key": f"{holder.name} (…{holder.last_four})", "team": holder.team}


def _by_team(keys: list[Row]) -> list[Row]:
    teams: dict[str, Row] = {}
    for row in keys:
        if row["team"] is None:
            continue
        total = teams.setdefault(row["team"], {"team": row["team"], "calls": 0, "cost_usd": 0.0})
        total["calls"] += row["calls"]
        total["cost_usd"] += row["cost_usd"]
    return sorted(teams.values(), key=lambda team: (-team["cost_usd"], team["team"]))


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value, default=str), media_type="application/json")
