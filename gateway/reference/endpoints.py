"""The table of endpoints, from the OpenAPI document that the server gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from cache.catalogue import Catalogue
from cache.memory_store import MemoryStore
from gateway.admin_parts import AdminParts
from gateway.app import create_app
from gateway.cache_admin import CacheAdmin, cache_routes
from gateway.feedback import Feedback, feedback_routes
from gateway.judging import judge_routes
from gateway.parts import Access, AppParts
from gateway.policy_admin import policy_routes
from gateway.reference.tables import table
from logging_layer.labels import LabelBook
from logging_layer.policies import PolicyHistory
from orchestration.core import Call, Event, Secret
from orchestration.core.errors import ServerError

BESIDE = (
    ("GET", "/admin/live", "The calls of all workers while they run: once as JSON, or as a feed of events."),
    ("WebSocket", "/v1/stream", "One call after another on one connection."),
    ("GET", "/", "The page for people."),
    ("GET", "/docs", "The OpenAPI document for people."),
    ("GET", "/openapi.json", "The OpenAPI document for programs."),
)
"""What is no part of the document: feeds, sockets and pages."""
_NOWHERE = "sqlite://"


def endpoints_table() -> str:
    """Write every path, with its method and what it does."""
    rows = [
        [method.upper(), f"`{path}`", _sentence(operation)]
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    ]
    rows += [[method, f"`{path}`", what] for method, path, what in BESIDE]
    return table(["method", "path", "what"], rows)


def document() -> dict[str, Any]:
    """Return the OpenAPI document of an application without parts."""
    calls = _NoCalls()
    feedback = Feedback(calls=calls, labels=LabelBook(_NOWHERE), store=MemoryStore())
    keeping = cache_routes(CacheAdmin(Catalogue("unix:///nowhere")))
    learning = (feedback_routes(feedback), policy_routes(PolicyHistory(_NOWHERE)), judge_routes(dict))
    admin = AdminParts(routers=(*learning, keeping))
    parts = AppParts(handler=_nothing, models=(), access=Access(tenant_key=Secret("")), calls=calls, admin=admin)
    return create_app(parts).openapi()


def _sentence(operation: dict[str, Any]) -> str:
    return f"{operation['summary'].rstrip('.')}."


async def _nothing(call: Call, /) -> AsyncGenerator[Event, None]:
    raise ServerError("This application only describes itself.")
    yield  # a generator, as handlers are


class _NoCalls:
    async def get(self, call_id: str) -> dict[str, Any] | None:
        return None
