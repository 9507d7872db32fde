"""The admin side, on FastAPI: nothing here is on the way of a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from gateway.admin_parts import AskWorkers
from gateway.backends_view import merge_backends
from gateway.overview import WRONG
from gateway.parts import CallReader
from orchestration.core.errors import NotFound


def admin_routes(
    calls: CallReader, backends: Callable[[], list[dict[str, Any]]], *, ask_workers: AskWorkers
) -> APIRouter:
    """Return the routes below `/admin`; the edge has looked at the key before."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.get(
        "/calls/{call_id}",
        summary="Everything that was decided about one call",
        response_model=None,
        responses={404: {"description": "No such call is known."}},
    )
    async def get_call(call_id: str) -> Response:
        record: dict[str, Any] | None = await calls.get(call_id)
        if record is None:
            raise NotFound(f"No call '{call_id[:64]}' is known.", param="call_id", code="call_not_found")
        return Response(orjson.dumps(record, default=str), media_type="application/json")

    @router.get("/backends", summary="How models are routed, and how backends stand for all workers", responses=WRONG)
    async def get_backends(scope: Literal["node", "worker"] = "node") -> Response:
        views = [] if scope == "worker" else [view for view in (await ask_workers("backends", {})).values() if view]
        models = merge_backends(views) if views else backends()
        answer = {"worker_pid": os.getpid(), "num_workers": len(views) or 1, "models": models}
        return Response(orjson.dumps(answer), media_type="application/json")

    return router
