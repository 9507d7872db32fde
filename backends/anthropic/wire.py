"""A remote server that speaks Anthropic's messages API."""

from __future__ import annotations

from typing import Any

import orjson

from backends.anthropic.decode import DIALECT, MessageDecoder
from backends.anthropic.encode import build_body, left_out
from backends.remote.backend import RemoteBackend, Timeouts
from backends.remote.tokens import TokenDecoder
from backends.remote.upstream import Upstream
from backends.remote.wire import Ask, Decoder
from orchestration.core.errors import BackendError
from orchestration.core.request import Kind, Request
from orchestration.core.secret import Secret

_VERSION = "2023-06-01"
_PATHS = {Kind.CHAT: "v1/messages", Kind.COUNT: "v1/messages/count_tokens"}
_NOT_COUNTED = frozenset(
    {"max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream", "metadata", "service_tier"}
)


def build_anthropic(
    *,
    base_url: str,
    name: str | None = None,
    upstream_model: str | None = None,
    api_key: Secret | None = None,
    timeouts: Timeouts | None = None,
) -> RemoteBackend:
    """Build the backend of a server; `base_url` is what stands before `/v1/messages`, with or without its `/v1`."""
    limits = timeouts or Timeouts()
    headers = {} if api_key is None else {"x-api-key": api_key.reveal()}
    upstream = Upstream(
        base_url=base_url.rstrip("/").removesuffix("/v1"),
        name=name,
        kind="anthropic",
        headers=headers,
        connect_s=limits.connect_s,
    )
    return RemoteBackend(AnthropicWire(upstream_model), upstream, api_key=api_key, timeouts=limits)


class AnthropicWire:
    """Anthropic's format.

    A request of an Anthropic client that no layer changed goes out as it came, but for the model's name: what
    providers sign or cache by its bytes stays what it was. Others are written from OpenAI's shape.
    """

    title = "Anthropic's"
    health_path = "v1/models"

    def __init__(self, model: str | None) -> None:
        self._model = model

    def ask(self, request: Request, *, backend: str) -> Ask:
        """Write the request; raises `InvalidRequest` for what the format cannot say."""
        path = _PATHS.get(request.kind)
        if path is None:
            raise BackendError(f"{backend} has no path for {request.kind} calls")
        is_its_own = request.dialect == DIALECT
        dropped: tuple[str, ...] = ()
        if is_its_own and request.raw is not None:
            body = orjson.loads(request.raw)
        else:
            body = build_body(request)
            dropped = left_out(request)
            if request.kind is Kind.COUNT:  # of what is no part of a prompt, the API takes nothing there
                body = {name: value for name, value in body.items() if name not in _NOT_COUNTED}
        headers = {"anthropic-version": _VERSION, **(request.headers if is_its_own else {})}
        return Ask(path, orjson.dumps({**body, "model": self._model_of(request)}), headers, dropped=dropped)

    def decoder(self, request: Request, *, backend: str) -> Decoder:
        """Return the reader of one answer."""
        if request.kind is Kind.COUNT:
            return TokenDecoder(_read_count, backend=backend, model=self._model_of(request))
        return MessageDecoder(request, backend=backend, model=self._model_of(request))

    def _model_of(self, request: Request) -> str:
        return self._model or request.model


def _read_count(answer: Any) -> dict[str, Any]:
    return {"count": int(answer["input_tokens"])}
