"""The application: hot endpoints at the edge, and FastAPI behind it for the documents and the admin side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gateway.access import Gatekeeper
from gateway.admin import admin_routes
from gateway.dialects import (
    AnthropicMessages,
    Dialect,
    OpenAIChat,
    OpenAICompletions,
    OpenAIEmbeddings,
    OpenAIResponses,
    Rerank,
)
from gateway.edge import Edge, Endpoint
from gateway.endpoints import Generation, Health, Live, Models, Stream, Tokens
from gateway.error_body import error_headers, error_reply, fault_error
from gateway.exchange import CALL_KEY, Receive, Scope, Send
from gateway.http_errors import MethodNotAllowed
from gateway.metrics import Metrics
from gateway.openapi import hot_document
from gateway.overview import overview_routes
from gateway.page.reference import reference_routes
from gateway.page.routes import page_routes
from gateway.part_numbers import MetricsPage
from gateway.parts import AppParts
from orchestration.core import Kind
from orchestration.core.errors import InvalidRequest, LaminaError, NotFound

DIALECTS: Mapping[str, type[Dialect]] = {
    "/v1/chat/completions": OpenAIChat,
    "/v1/completions": OpenAICompletions,
    "/v1/embeddings": OpenAIEmbeddings,
    "/v1/messages": AnthropicMessages,
    "/v1/responses": OpenAIResponses,
    "/v1/rerank": Rerank,
    "/v2/rerank": Rerank,
}


class Lamina(FastAPI):
    """FastAPI behind the edge: it never sees the hot endpoints, and its document describes them all the same."""

    edge: Edge | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer through the edge, which passes on what is not hot."""
        assert self.edge is not None, "create_app sets it"
        await self.edge(scope, receive, send)

    async def behind_edge(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as FastAPI does."""
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if not self.openapi_schema:
            document = super().openapi()
            hot = hot_document()
            document["paths"] = {**hot["paths"], **document["paths"]}
            document.setdefault("components", {}).setdefault("schemas", {}).update(hot["schemas"])
        assert self.openapi_schema is not None, "the base class keeps it"
        return self.openapi_schema


def create_app(parts: AppParts, *, metrics: Metrics | None = None) -> FastAPI:
    """Return the ASGI application over the parts; does no I/O, and closes none of them.

    A process that makes a second one gives it the first one's `metrics`: they go on counting.
    """
    app = Lamina(
        title="Lamina",
        summary="An LLM gateway that carries its own engine.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            LaminaError: _answer_error,
            HTTPException: _answer_http_exception,
            RequestValidationError: _answer_invalid,
            Exception: _answer_fault,
        },
    )
    health = Health(parts.health, is_draining=parts.is_draining)
    app.include_router(admin_routes(parts.calls, parts.backends, ask_workers=parts.admin.ask_workers))
    app.include_router(overview_routes(parts.admin, health=health))
    app.include_router(page_routes())
    app.include_router(reference_routes(app.openapi))
    for router in parts.admin.routers:
        app.include_router(router)
    gatekeeper = Gatekeeper(parts.access)
    metrics = metrics or Metrics((), folder=parts.metrics_folder)
    metrics.know((card.id for card in parts.models), price_of=parts.price_of)
    endpoints = _endpoints(parts, gatekeeper=gatekeeper, metrics=metrics, health=health)
    app.edge = Edge(
        app.behind_edge,
        endpoints=endpoints,
        gatekeeper=gatekeeper,
        metrics=metrics,
        sockets={"/v1/stream": _stream(parts, gatekeeper=gatekeeper, metrics=metrics)},
    )
    return app


def _endpoints(parts: AppParts, *, gatekeeper: Gatekeeper, metrics: Metrics, health: Health) -> dict[str, Endpoint]:
    models = Models(parts.models, gatekeeper=gatekeeper)
    tokens = Tokens(
        parts.tokens,
        parts.handler,
        gatekeeper=gatekeeper,
        models=parts.models,
        max_body_bytes=parts.max_body_bytes,
    )
    live = Live(parts.admin, gatekeeper=gatekeeper, ending=parts.ending)
    calls = {
        path: Endpoint(
            "POST",
            Generation(
                dialect(),
                parts.handler,
                gatekeeper=gatekeeper,
                metrics=metrics,
                max_body_bytes=parts.max_body_bytes,
                stream_commit_s=parts.stream_commit_s,
            ),
        )
        for path, dialect in DIALECTS.items()
    }
    return {
        **calls,
        "/v1/messages/count_tokens": Endpoint("POST", tokens.count, needs_key=True),
        "/tokenize": Endpoint("POST", tokens.tokenize, needs_key=True),
        "/detokenize": Endpoint("POST", tokens.detokenize, needs_key=True),
        "/v1/models": Endpoint("GET", models.list),
        "/v1/models/": Endpoint("GET", models.get),
        "/health/live": Endpoint("GET", health.live),
        "/health/ready": Endpoint("GET", health.ready),
        "/admin/live": Endpoint("GET", live),
        "/metrics": Endpoint(
            "GET", MetricsPage(metrics, parts.stats, engine=parts.engine, histograms=parts.histograms)
        ),
    }


def _stream(parts: AppParts, *, gatekeeper: Gatekeeper, metrics: Metrics) -> Stream:
    return Stream(
        parts.handler,
        gatekeeper=gatekeeper,
        metrics=metrics,
        models=[card.id for card in parts.models if Kind.CHAT in card.kinds],
        ending=parts.ending,
        is_draining=parts.is_draining,
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LaminaError), "registered for nothing else"
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    status, body = error_reply(error, path=request.url.path, call_id=request.scope[CALL_KEY])
    return Response(body, status, headers, media_type="application/json")


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for nothing else"
    path, method = request.url.path[:256], request.method
    match error.status_code:
        case 404:
            return await _answer_error(request, NotFound(f"Nothing is at {path}.", code="unknown_path"))
        case 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            wrong = MethodNotAllowed(f"{path} answers {allowed}, not {method}.", allowed=allowed)
            return await _answer_error(request, wrong)
        case status:
            other = InvalidRequest(str(error.detail))
            other.status = status
            return await _answer_error(request, other)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for nothing else"
    first = error.errors()[0]
    field = ".".join(str(step) for step in first["loc"][1:])
    return await _answer_error(request, InvalidRequest(f"Invalid '{field}': {first['msg']}.", param=field))


async def _answer_fault(request: Request, _: Exception) -> Response:
    """Answer for a fault of ours; the edge logs it, since the exception goes on to there."""
    return await _answer_error(request, fault_error(request.scope[CALL_KEY]))
