"""A remote server that speaks OpenAI's API: a call's fields go out as they came."""

from __future__ import annotations

import orjson

from backends.openai_compatible.decode import AnswerDecoder
from backends.remote.backend import RemoteBackend, Timeouts
from backends.remote.upstream import Upstream
from backends.remote.wire import Ask
from backends.rest import without_rest
from orchestration.core.errors import BackendError
from orchestration.core.request import Kind, Request
from orchestration.core.secret import Secret

_PATHS = {Kind.CHAT: "chat/completions", Kind.COMPLETION: "completions", Kind.EMBEDDING: "embeddings"}


def build_openai_compatible(
    *,
    base_url: str,
    name: str | None = None,
    upstream_model: str | None = None,
    api_key: Secret | None = None,
    timeouts: Timeouts | None = None,
) -> RemoteBackend:
    """Build the backend of a server; `base_url` is what stands before `/chat/completions`."""
    limits = timeouts or Timeouts()
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key.reveal()}"}
    upstream = Upstream(
        base_url=base_url, name=name, kind="openai_compatible", headers=headers, connect_s=limits.connect_s
    )
    return RemoteBackend(OpenAIWire(upstream_model), upstream, api_key=api_key, timeouts=limits)


class OpenAIWire:
    """OpenAI's format.

    Every field that the client sent goes along; the model's name is replaced, and a stream is always asked for its
    usage.
    """

    title = "OpenAI's"
    health_path = "models"

    def __init__(self, model: str | None) -> None:
        self._model = model

    def ask(self, request: Request, *, backend: str) -> Ask:
        """Write the request; raises `BackendError` for a kind of call that has no path."""
        path = _PATHS.get(request.kind)
        if path is None:
            raise BackendError(f"{backend} has no path for {request.kind} calls")
        body = {**without_rest(request), "model": self._model or request.model}
        if request.is_streamed and request.kind is not Kind.EMBEDDING:
            body["stream_options"] = {**(request.fields.get("stream_options") or {}), "include_usage": True}
        return Ask(path, orjson.dumps(body))

    def decoder(self, request: Request, *, backend: str) -> AnswerDecoder:
        """Return the reader of one answer."""
        return AnswerDecoder(request.kind, backend=backend, model=self._model or request.model)
