"""Where the gateway listens that a command is to ask."""

from __future__ import annotations

from gateway.supervisor.state import STATE_FOLDER, StateFolder

_DEFAULT = "http://127.0.0.1:4000"


def address_of(url: str | None) -> str:
    """Return the address that was given, that of the gateway which serves in this folder, or the default one."""
    return url or StateFolder(STATE_FOLDER).read_status().get("url") or _DEFAULT
