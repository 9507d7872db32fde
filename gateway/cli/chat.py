"""`lamina chat`: a conversation over HTTP, with the layer that answered under each answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.cli.address import key_header
from gateway.refusals import Refused

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class ChatFailed(Refused):
    """The gateway did not answer, or refused."""


@dataclass(slots=True)
class Session:
    """One conversation and where it takes place."""

    url: str
    model: str | None
    system: str | None
    temperature: float
    key: str | None
    messages: list[dict[str, str]] = field(default_factory=list)


def run(session: Session, message: str | None) -> None:
    """Ask one question, or converse until the input ends; raises `ChatFailed` where nobody answers.

    A question that is refused ends no conversation; where they come from a pipe, the command fails at the end.
    """
    headers = key_header(session.key)
    timeout = httpx.Timeout(600.0, connect=5.0)
    with httpx.Client(base_url=session.url, headers=headers, timeout=timeout) as client:
        try:
            session.model = session.model or _first_model(client)
            if session.system:
                session.messages.append({"role": "system", "content": session.system})
            if message is not None:
                _ask(client, session, message)
            else:
                _converse(client, session)
        except httpx.HTTPError as exc:
            raise ChatFailed(f"no answer from {session.url} ({exc}): is 'lamina serve' running there?") from exc


def _converse(client: httpx.Client, session: Session) -> None:
    is_person, num_refused = sys.stdin.isatty(), 0
    print(_dim(f"{session.model} at {session.url}; an empty line or Ctrl-D ends"))
    while True:
        try:
            text = input("> " if is_person else "")
        except EOFError:
            break
        if not text.strip():
            break
        try:
            _ask(client, session, text)
        except ChatFailed as exc:
            num_refused += 1
            session.messages.pop()
            print(exc, file=sys.stderr)
    if num_refused and not is_person:
        raise ChatFailed(f"{num_refused} of the questions had no answer")


def _first_model(client: httpx.Client) -> str:
    reply = client.get("/v1/models")
    if reply.status_code != 200:
        raise ChatFailed(_refusal(reply))
    ids = [str(model["id"]) for model in reply.json()["data"]]
    if not ids:
        raise ChatFailed("the gateway lists no model")
    return ids[0]


def _ask(client: httpx.Client, session: Session, text: str) -> None:
    session.messages.append({"role": "user", "content": text})
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # how Python reads bytes that are no text
        raise ChatFailed("this question is no UTF-8 text, so it was not sent")
    body = {
        "model": session.model,
        "messages": session.messages,
        "temperature": session.temperature,
        "stream": True,
    }
    begun = time.monotonic()
    with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            reply.read()
            raise ChatFailed(_refusal(reply))
        pieces = []
        first_s: float | None = None
        for piece in _pieces(reply):
            first_s = first_s if first_s is not None else time.monotonic() - begun
            pieces.append(piece)
            print(piece, end="", flush=True)
    print()
    print(_dim(_provenance(reply.headers, first_s or 0.0, time.monotonic() - begun)))
    session.messages.append({"role": "assistant", "content": "".join(pieces)})


def _pieces(reply: httpx.Response) -> Iterator[str]:
    """Yield the answer's text as it comes; raises `ChatFailed` for an error inside the stream."""
    for line in reply.iter_lines():
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        chunk: dict[str, Any] = json.loads(line.removeprefix("data:"))
        if "error" in chunk:
            print()
            raise ChatFailed(f"the answer broke off: {chunk['error'].get('message')}")
        for choice in chunk.get("choices", ()):
            yield choice.get("delta", {}).get("content") or ""


def _provenance(headers: httpx.Headers, first_s: float, whole_s: float) -> str:
    """Say who answered: the exact cache, the semantic cache with its similarity, or a backend."""
    cache = headers.get("x-lamina-cache", "?")
    backend = headers.get("x-lamina-backend")
    words = {
        "exact": "from the exact cache",
        "semantic": f"from the semantic cache (similarity {headers.get('x-lamina-similarity')}"
        f", bar {headers.get('x-lamina-threshold')})",
    }.get(cache, f"from {backend or 'a backend'} (cache: {cache})")
    call = headers.get("x-lamina-call", "?")
    return f"[{words}; first words {first_s * 1000:.0f} ms, all {whole_s * 1000:.0f} ms; call {call}]"


def _refusal(reply: httpx.Response) -> str:
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text[:200]
    hint = " (set LAMINA_API_KEY or --key)" if reply.status_code == 401 else ""
    return f"the gateway said {reply.status_code}: {message}{hint}"


def _dim(text: str) -> str:
    return f"{_DIM}{text}{_PLAIN}" if sys.stdout is not None and sys.stdout.isatty() else text
