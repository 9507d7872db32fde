"""Where the gateway listens that a command is to ask, and the header with the key for it."""

from __future__ import annotations

from gateway.refusals import Refused
from gateway.supervisor.state import STATE_FOLDER, StateFolder

_DEFAULT = "http://127.0.0.1:4000"


def address_of(url: str | None) -> str:
    """Return the address that was given, that of the gateway which serves in this folder, or the default one.

    OpenAI's clients are given it with `/v1` at its end, so that is read as well.
    """
    if url:
        return url.rstrip("/").removesuffix("/v1")
    return StateFolder(STATE_FOLDER).read_status().get("url") or _DEFAULT


def key_header(key: str | None) -> dict[str, str]:
    """Return the header that carries a key; raises `Refused`, which does not show it, where no header can."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or key != key.strip():
        raise Refused("the key has characters that no key has: visible ASCII is expected, without blanks around it")
    return {"authorization": f"Bearer {key}"}
