"""`/admin/cache/policy`: what is in force, what was before, and another one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from logging_layer.policies import SETTINGS, PoliciesDown, PolicyHistory
from orchestration.core.errors import InvalidRequest, Unavailable

POLICIES = ("static", "calibrated", SETTINGS)
_MAX_TEXT_CHARS = 500


def policy_routes(history: PolicyHistory) -> APIRouter:
    """Return the routes; every worker and node follows within a second."""
    router = APIRouter(prefix="/admin/cache", tags=["admin"])

    @router.get("/policy", summary="The semantic cache's policies that were applied while serving, the newest first")
    async def get_policies() -> Response:
        try:
            known = await history.recent()
        except PoliciesDown as exc:
            raise Unavailable(str(exc)) from exc
        return _reply({"policies": [asdict(one) for one in known]})

    @router.put("/policy", summary="Put another policy in force; policy 'settings' goes back to the settings' own")
    async def put_policy(request: Request) -> Response:
        wanted = _read(await request.body())
        try:
            applied = await history.apply(**wanted, now=time.time())
        except PoliciesDown as exc:
            raise Unavailable(str(exc)) from exc
        return _reply(asdict(applied))

    return router


def _read(body: bytes) -> dict[str, Any]:
    """Check the body; raises `InvalidRequest` naming the field."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The body is no JSON: {exc}.") from exc
    if not isinstance(fields, dict):
        raise InvalidRequest('The body is an object such as {"threshold": 0.97, "by": "ann", "reason": "a sweep"}.')
    policy = fields.get("policy", "static")
    if policy not in POLICIES:
        raise InvalidRequest(f"'policy' is one of {', '.join(POLICIES)}.", param="policy")
    return {
        "policy": policy,
        "threshold": _number(fields, "threshold", 0.95, low=-1.0, high=1.0, is_needed=policy == "static"),
        "wrong_to_call_cost": _number(fields, "wrong_to_call_cost", 25.0, low=1.0, high=1e9),
        "applied_by": _text(fields, "by"),
        "reason": _text(fields, "reason"),
    }


def _number(
    fields: Mapping[str, Any], name: str, default: float, *, low: float, high: float, is_needed: bool = False
) -> float:
    value = fields.get(name, None if is_needed else default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        raise InvalidRequest(f"'{name}' is a number from {low:g} to {high:g}.", param=name)
    return float(value)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT_CHARS:
        raise InvalidRequest(f"'{name}' is a text of 1 to {_MAX_TEXT_CHARS} characters.", param=name)
    return value


def _reply(value: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
