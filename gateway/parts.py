"""What wiring builds and the HTTP side serves: the border between the two halves of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from backends.local.link import HistogramCounts, Measures
from gateway.admin_parts import AdminParts
from orchestration.core import Handler, Kind, Price, Request, Secret

HealthCheck = Callable[[], Awaitable[str | None]]
"""Say in a phrase what is wrong with a part, or None where it answers."""

StatsSource = Callable[[], Awaitable[Mapping[str, float]]]
"""Give a part's numbers by name, for `/metrics`; raises OSError where the part does not answer."""

HistogramSource = Callable[[], Awaitable[Mapping[str, HistogramCounts]]]
"""Give a part's histograms by name, for `/metrics`; raises OSError where the part does not answer."""

EngineSource = Callable[[], Awaitable[Measures | None]]
"""Give the built-in engine's numbers and histograms, None where there is none; raises OSError if it is silent."""


class ModelTokens(Protocol):
    """Turn what a local model reads into token ids, and ids into text."""

    async def encode_text(self, text: str, *, adds_special: bool) -> list[int]:
        """Return a text's ids."""
        ...

    async def encode_chat(self, request: Request) -> list[int]:
        """Return a chat's ids; raises `InvalidRequest` by field where the model cannot take it."""
        ...

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the ids' text; raises `InvalidRequest` for ids that the model has not."""
        ...

    async def label(self, token_id: int) -> str:
        """Return how one token is shown to a reader."""
        ...

    async def max_tokens(self) -> int:
        """Return how many tokens a prompt and its answer may have together."""
        ...


class CallReader(Protocol):
    """Read call records back."""

    async def get(self, call_id: str) -> dict[str, Any] | None:
        """Return one call's whole record, or None where no such call is known."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as `/v1/models` lists it; `created` is Unix time in seconds."""

    id: str
    kinds: frozenset[Kind]
    created: int
    owned_by: str = "lamina"


class KeyRing(Protocol):
    """The keys that were issued."""

    @property
    def is_in_use(self) -> bool:
        """Tell whether a call needs a key."""
        ...

    def admit(self, bearer: str) -> str:
        """Return the id of the live key that this bearer is; raises `Unauthorized`."""
        ...

    def may_use(self, key_id: str, model: str) -> bool:
        """Tell whether a key may ask for a model; what is no issued key may ask for all."""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call: without keys any bearer is its own tenant; with a `master_key`, or once keys were issued, every
    call must carry one of them.

    `tenant_key` keys the hash that turns a bearer into a tenant's name.
    """

    tenant_key: Secret
    master_key: Secret | None = None
    keys: KeyRing | None = None
    allowed_hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class AppParts:
    """Everything that the HTTP side needs, and nothing of the settings."""

    handler: Handler
    models: Sequence[ModelCard]
    access: Access
    calls: CallReader
    health: Mapping[str, HealthCheck] = field(default_factory=dict)
    stats: Mapping[str, StatsSource] = field(default_factory=dict)
    """By part; `engine` gives the engine's numbers, see `backends/engine/server.py`."""
    histograms: Mapping[str, HistogramSource] = field(default_factory=dict)
    """By part, as `stats`."""
    price_of: Callable[[Sequence[str | None], str | None], Price] = lambda _models, _backend: Price()
    """What an answer costs, by the names that its model may go by and that of the backend that made it."""
    engine: EngineSource | None = None
    """For `/metrics`; `stats` holds its plain numbers."""
    tokens: Mapping[str, ModelTokens] = field(default_factory=dict)
    """The tokens of the local models, by alias."""
    metrics_folder: Path | None = None
    """Where the workers' metrics meet (prometheus_client's multiprocess folder); None: this process alone."""
    backends: Callable[[], list[dict[str, Any]]] = list
    """By model, how its backends stand, for `/admin/backends`."""
    admin: AdminParts = field(default_factory=AdminParts)
    max_body_bytes: int = 20 * 1024 * 1024
    stream_commit_s: float = 10.0
    is_draining: Callable[[], bool] = lambda: False
    """True from SIGTERM on: `/health/ready` answers 503 while calls in flight end."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once new calls go elsewhere: what has no end of its own, a socket or a feed, is then to end."""
