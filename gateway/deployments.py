"""What a backend is called wherever its state is kept or shared: the same on every worker and node that means it."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from urllib.parse import urlsplit

from gateway.settings import BackendSettings, ModelSettings, Settings

_LOOPBACK = ("localhost", "127.", "::1")


def node_name(state: Path) -> str:
    """Name this installation on this machine: parts that only it can reach are not another node's."""
    digest = hashlib.sha256(str(state).encode()).hexdigest()
    return f"{socket.gethostname()}.{digest[:6]}"


def deployment_id(settings: Settings, model: ModelSettings, backend: BackendSettings, *, node: str) -> str:
    """Name one deployment: its type, where it is, its model there, and which key; no secret can be read from it."""
    match backend.type:
        case "engine":
            return f"engine:{settings.engine.connect or node}"
        case "embedder":
            return f"embedder:{node}"
        case _:
            place = _place_of(backend.base_url or "", node)
            key = backend.api_key.reveal() if backend.api_key is not None else ""
            mark = f"@{hashlib.sha256(key.encode()).hexdigest()[:6]}" if key else ""
            return f"{backend.type}:{place}#{backend.model or model.id}{mark}"


def _place_of(url: str, node: str) -> str:
    """Take what stands before the host out of a URL, as it may be a password, and tell nodes' own hosts apart."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if url else ""
    return f"{place}({node})" if host.startswith(_LOOPBACK) or not url else place
