"""The outermost layer of HTTP: who may come in, which endpoint answers, and how every request ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.access import Gatekeeper
from gateway.anthropic_errors import is_anthropic_path
from gateway.body import bounded
from gateway.endpoints.generation import fault_of
from gateway.error_body import error_headers, error_reply
from gateway.exchange import Exchange, Message, Receive, Scope, Send, headers_of
from gateway.http_errors import BodyStalled, ClientLeft, MethodNotAllowed, Stopping
from gateway.metrics import Metrics
from orchestration.core.errors import BodyTooLarge, LaminaError

logger = logging.getLogger(__name__)
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CLIENT_LEFT = 499


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What answers a path: one method, and whether a key is looked at before (calls look themselves)."""

    method: str
    answer: Callable[[Exchange], Awaitable[None]]
    needs_key: bool = False


class Edge:
    """Answer the hot paths and pass the others on to `app`.

    A path that ends in a slash in `endpoints` answers everything below it. OpenAI's paths are answered without their
    `/v1` too: clients are pointed at gateways with and without it. Whatever is raised becomes an error in the shape
    of the path's clients, and every reply has the headers of every reply.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[str, Endpoint],
        gatekeeper: Gatekeeper,
        metrics: Metrics,
        sockets: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        self._app = app
        self._sockets = sockets or {}
        self._endpoints = endpoints
        self._below = {path: endpoint for path, endpoint in endpoints.items() if path.endswith("/")}
        self._gatekeeper = gatekeeper
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection's scope."""
        match scope["type"]:
            case "http":
                await self._answer(Exchange(scope, receive, send))
            case "websocket":
                await self._pass_websocket(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            self._gatekeeper.check_site(exchange.headers)
            await self._dispatch(exchange)
        except ClientLeft:
            exchange.status = CLIENT_LEFT
        except asyncio.CancelledError:
            error = Stopping("The gateway is being stopped; try again.")
            exchange.status = error.status
            if not exchange.is_started:
                await _refuse(exchange, error)
            raise
        except LaminaError as exc:
            await _refuse(exchange, exc)
        except Exception as exc:  # the edge: nothing that failed here may end as a closed connection
            fault = fault_of(exc, exchange.id)
            if not exchange.is_started:
                await _refuse(exchange, fault)
        finally:
            self._metrics.observe(exchange)

    async def _dispatch(self, exchange: Exchange) -> None:
        path = exchange.path
        label, endpoint = self._find(path)
        if endpoint is None:
            await self._pass_on(exchange, path)
            return
        exchange.label = label
        method = exchange.scope["method"]
        if method == "HEAD" and endpoint.method == "POST":  # coding agents look in this way whether anybody is here
            await exchange.reply(200, b"")
            return
        if method != endpoint.method and not (method == "HEAD" and endpoint.method == "GET"):
            raise MethodNotAllowed(f"{path} answers {endpoint.method}, not {method}.", allowed=endpoint.method)
        if endpoint.needs_key:
            self._gatekeeper.tenant_of(exchange.headers)
        await endpoint.answer(exchange)

    def _find(self, path: str) -> tuple[str, Endpoint | None]:
        endpoint = self._endpoints.get(path)
        if endpoint is not None:
            return path, endpoint
        for prefix, below in self._below.items():
            if path.startswith(prefix):
                return prefix, below
        whole = f"/v1{path}"
        if path.startswith("/v1/") or is_anthropic_path(whole):
            return "", None
        return self._find(whole)

    async def _pass_on(self, exchange: Exchange, path: str) -> None:
        """Let the application answer, with our headers on its reply."""
        if path == "/admin" or path.startswith("/admin/"):
            exchange.label = "/admin"
            self._gatekeeper.check_admin(exchange.headers)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.is_started = True
                exchange.status = message["status"]
                message["headers"] = exchange.head(message["headers"])
            await exchange.send(message)

        await self._app(exchange.scope, bounded(exchange), send)

    async def _pass_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = self._sockets.get(scope.get("path", "").removeprefix(scope.get("root_path", "")))
        if socket is not None:
            await socket(scope, receive, send)
            return
        try:
            headers = headers_of(scope)
            self._gatekeeper.check_site(headers)
            self._gatekeeper.check_admin(headers)
        except LaminaError:
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)


async def _refuse(exchange: Exchange, error: LaminaError) -> None:
    if exchange.is_started:
        logger.error("reply.cut id=%s error=%s", exchange.id, error.code or error.type)
        return
    write = exchange.reply_early if isinstance(error, (BodyTooLarge, BodyStalled)) else exchange.reply
    status, body = error_reply(error, path=exchange.path, call_id=exchange.id)
    await write(status, body, headers=error_headers(error))
