"""A remote server that speaks OpenAI's API: a call's fields go out as they came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from backends.openai_compatible.decode import AnswerDecoder
from backends.openai_compatible.providers import ANY, PROVIDERS, Provider
from backends.openai_compatible.tokens import read_text, read_tokens
from backends.remote.backend import RemoteBackend, Timeouts
from backends.remote.tokens import TokenDecoder
from backends.remote.upstream import Upstream
from backends.remote.wire import Ask, Decoder
from backends.rest import left_out, without_rest
from orchestration.core.errors import BackendError
from orchestration.core.request import TOKEN_KINDS, Kind, Request
from orchestration.core.secret import Secret

_PATHS = {
    Kind.CHAT: "chat/completions",
    Kind.COMPLETION: "completions",
    Kind.EMBEDDING: "embeddings",
    Kind.RERANK: "rerank",
}


def build_openai_compatible(
    *,
    base_url: str | None = None,
    provider: str | None = None,
    drops: bool = False,
    name: str | None = None,
    upstream_model: str | None = None,
    api_key: Secret | None = None,
    timeouts: Timeouts | None = None,
) -> RemoteBackend:
    """Build the backend of a server; `base_url` is what stands before `/chat/completions`, by default the provider's.

    With `drops`, fields that the provider does not take are left out; else they are refused by name. Raises
    `ValueError` for a provider that is not known, and where there is no address.
    """
    known = ANY if provider is None else PROVIDERS.get(provider)
    if known is None:
        raise ValueError(f"no provider '{provider}'; these are known: {', '.join(PROVIDERS)}")
    base_url = base_url or known.base_url
    if base_url is None:
        raise ValueError("needs base_url, or a provider")
    if known.is_rooted:
        base_url = base_url.rstrip("/").removesuffix("/v1")
    limits = timeouts or Timeouts()
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key.reveal()}"}
    upstream = Upstream(
        base_url=base_url, name=name, kind="openai_compatible", headers=headers, connect_s=limits.connect_s
    )
    wire = OpenAIWire(upstream_model, provider=known, drops=drops)
    return RemoteBackend(wire, upstream, api_key=api_key, timeouts=limits)


class OpenAIWire:
    """OpenAI's format.

    Every field that the client sent goes along, as the provider takes it; the model's name is replaced, and a stream
    is always asked for its usage.
    """

    title = "OpenAI's"

    def __init__(self, model: str | None, *, provider: Provider = ANY, drops: bool = False) -> None:
        self._model = model
        self._provider = provider
        self._drops = drops

    @property
    def health_path(self) -> str:
        """Return a path that costs nothing to ask."""
        return "health" if self._provider.is_rooted else "models"

    def ask(self, request: Request, *, backend: str) -> Ask:
        """Write the request; raises `BackendError` for a kind of call that has no path.

        Raises `InvalidRequest` for what the server does not take.
        """
        fields = {**without_rest(request), "model": self._model or request.model}
        if request.kind in TOKEN_KINDS:
            return self._ask_tokens(request.kind, fields, backend=backend)
        path = self._provider.paths.get(request.kind) or _PATHS.get(request.kind)
        if path is None:
            raise BackendError(f"{backend} has no path for {request.kind} calls")
        if request.kind is Kind.RERANK:
            return Ask(path, orjson.dumps(self._provider.ranks.write(fields)))
        body, dropped = self._provider.adapt(fields, request.kind, name=backend, drops=self._drops)
        if request.is_streamed and request.kind is not Kind.EMBEDDING:
            body["stream_options"] = {**(request.fields.get("stream_options") or {}), "include_usage": True}
        return Ask(path, orjson.dumps(body), dropped=(*dropped, *left_out(request)))

    def decoder(self, request: Request, *, backend: str) -> Decoder:
        """Return the reader of one answer."""
        model = self._model or request.model
        if request.kind in TOKEN_KINDS:
            return TokenDecoder(
                read_text if request.kind is Kind.DETOKENIZE else read_tokens, backend=backend, model=model
            )
        return AnswerDecoder(request, backend=backend, model=model)

    def _ask_tokens(self, kind: Kind, fields: Mapping[str, Any], *, backend: str) -> Ask:
        way = self._provider.tokens.ways.get(kind)
        if way is None:
            raise BackendError(f"{backend} has no path for {kind} calls")
        return way(fields)
