"""The table of endpoints, from the OpenAPI document that the server gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from gateway.app import create_app
from gateway.parts import Access, AppParts
from gateway.reference.tables import table
from orchestration.core import Call, Event, Secret
from orchestration.core.errors import ServerError


def endpoints_table() -> str:
    """Write every path that the document has, with its method and what it does."""
    rows = [
        [method.upper(), f"`{path}`", _sentence(operation)]
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    ]
    return table(["method", "path", "what"], rows)


def document() -> dict[str, Any]:
    """Return the OpenAPI document of an application without parts."""
    parts = AppParts(handler=_nothing, models=(), access=Access(tenant_key=Secret("")), calls=_NoCalls())
    return create_app(parts).openapi()


def _sentence(operation: dict[str, Any]) -> str:
    return f"{operation['summary'].rstrip('.')}."


async def _nothing(call: Call, /) -> AsyncGenerator[Event, None]:
    raise ServerError("This application only describes itself.")
    yield  # a generator, as handlers are


class _NoCalls:
    async def get(self, call_id: str) -> dict[str, Any] | None:
        return None
