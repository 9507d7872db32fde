"""Backends by the name of their type, as the settings give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.anthropic import build_anthropic
from backends.echo import EchoBackend
from backends.local.backend import LocalBackend
from backends.local.link import EngineLink, Measures
from backends.local.model import LocalModel
from backends.local.tokens import LocalTokens
from backends.openai_compatible import build_openai_compatible
from backends.openai_compatible.providers import ANY, PROVIDERS
from backends.remote import Timeouts
from orchestration.core.errors import BackendError
from orchestration.core.protocols import Backend
from orchestration.core.request import Kind
from orchestration.core.secret import Secret

_TEXT = frozenset({Kind.CHAT, Kind.COMPLETION})
KINDS: Mapping[str, frozenset[Kind]] = {
    "engine": _TEXT,
    "echo": _TEXT,
    "anthropic": frozenset({Kind.CHAT, Kind.COUNT}),
    "openai_compatible": ANY.kinds,
    "embedder": frozenset({Kind.EMBEDDING, Kind.RERANK}),
}
"""The kinds of calls that each type of backend answers."""


def kinds_of(type: str, provider: str | None) -> frozenset[Kind]:
    """Return the kinds of calls that a backend answers; a provider's server may answer fewer than its type."""
    return KINDS[type] if provider is None else PROVIDERS[provider].all_kinds


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """One backend of a model's: `model` is our alias for it, `upstream_model` its name there.

    `base_url` and `api_key` are for remote types, `provider` and `drops` (leave out what the provider does not take)
    for `openai_compatible`; `engine_address` (`unix:///path`, `tcp://host:port`) and
    `model_path` (for the tokenizer and the chat template) for the type `engine`. Without `first_token_s` a remote
    server has 60 s to its first content, and the engine as long as it moves.
    """

    type: str
    model: str
    upstream_model: str | None = None
    base_url: str | None = None
    api_key: Secret | None = None
    provider: str | None = None
    drops: bool = False
    connect_s: float = 5.0
    first_token_s: float | None = None
    total_s: float = 600.0
    engine_address: str | None = None
    model_path: Path | None = None


class BackendFactory:
    """Build backends and own what they share: those of one engine and model have one link and one tokenizer.

    Building does no I/O: connections and files are opened when first needed, or by `check_health`.
    """

    def __init__(self) -> None:
        self._models: dict[tuple[str, Path], LocalModel] = {}
        self._backends: list[Backend] = []
        self._tokens: dict[str, LocalTokens] = {}
        self._builders: Mapping[str, Callable[[BackendOptions], Backend]] = {
            "engine": self._build_engine,
            "echo": _build_echo,
            "anthropic": _build_anthropic,
            "openai_compatible": _build_openai_compatible,
        }

    def create(self, options: BackendOptions) -> Backend:
        """Build a backend; raises `ValueError` naming the known types, or the option that is missing or wrong."""
        build = self._builders.get(options.type)
        if build is None:
            known = ", ".join(self._builders)
            raise ValueError(f"model '{options.model}': no backend type '{options.type}'; these are known: {known}")
        backend = build(options)
        self._backends.append(backend)
        return backend

    @property
    def tokens(self) -> Mapping[str, LocalTokens]:
        """Give the tokens of every model that an engine of ours answers for, by our alias for it."""
        return self._tokens

    async def engine_stats(self) -> Mapping[str, float] | None:
        """Return the engine's numbers, None where no backend has an engine; raises `OSError` if it is silent."""
        for model in self._models.values():
            try:
                return await model.link.stats()
            except BackendError as exc:
                raise OSError(exc.message) from exc
        return None

    async def engine_measures(self) -> Measures | None:
        """Return the same with the engine's histograms, None where no backend has one; raises `OSError`."""
        for model in self._models.values():
            try:
                return await model.link.measures()
            except BackendError as exc:
                raise OSError(exc.message) from exc
        return None

    async def aclose(self) -> None:
        """Close every backend and every link; calls in flight end with an error."""
        for backend in self._backends:
            await backend.aclose()
        for model in self._models.values():
            await model.aclose()

    def _build_engine(self, options: BackendOptions) -> Backend:
        if options.engine_address is None or options.model_path is None:
            raise ValueError(f"model '{options.model}': the type engine needs engine_address and model_path")
        key = (options.engine_address, options.model_path)
        if key not in self._models:
            link = EngineLink(options.engine_address, connect_s=options.connect_s)
            self._models[key] = LocalModel(link, path=options.model_path)
        self._tokens[options.model] = LocalTokens(self._models[key])
        return LocalBackend(self._models[key], first_token_s=options.first_token_s, total_s=options.total_s)


def _build_echo(options: BackendOptions) -> Backend:
    return EchoBackend(model=options.upstream_model or options.model)


def _build_anthropic(options: BackendOptions) -> Backend:
    if options.base_url is None:
        raise ValueError(f"model '{options.model}': the type anthropic needs base_url")
    return build_anthropic(
        base_url=options.base_url,
        upstream_model=options.upstream_model,
        api_key=options.api_key,
        timeouts=_timeouts(options),
    )


def _timeouts(options: BackendOptions) -> Timeouts:
    if options.first_token_s is None:
        return Timeouts(connect_s=options.connect_s, total_s=options.total_s)
    return Timeouts(options.connect_s, options.first_token_s, options.total_s)


def _build_openai_compatible(options: BackendOptions) -> Backend:
    if options.base_url is None and options.provider is None:
        raise ValueError(f"model '{options.model}': the type openai_compatible needs base_url")
    return build_openai_compatible(
        base_url=options.base_url,
        provider=options.provider,
        drops=options.drops,
        upstream_model=options.upstream_model,
        api_key=options.api_key,
        timeouts=_timeouts(options),
    )
