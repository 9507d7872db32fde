"""The request's body: read up to a bound, and parsed as strict JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from gateway.exchange import Exchange, Message, Receive
from gateway.http_errors import BodyStalled, ClientLeft, UnsupportedEncoding
from orchestration.core.deadlines import Deadlines
from orchestration.core.errors import BodyTooLarge, InvalidRequest

# What follows writes bodies out again: orjson stops at 254 levels, Python's own json near 1,000.
MAX_DEPTH = 100
MAX_SIDE_BYTES = 1024 * 1024
"""The largest body of what is no call."""


async def read_body(
    exchange: Exchange, *, max_bytes: int, stall_s: float = 30.0, deadlines: Deadlines | None = None
) -> bytes:
    """Return the whole body.

    Raises `BodyTooLarge` as soon as it is known to pass `max_bytes`, reading no further; `UnsupportedEncoding` where it
    is compressed; `BodyStalled` when nothing came for `stall_s`; `ClientLeft` when the client went before the end.
    """
    length = exchange.headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    encoding = exchange.headers.get(b"content-encoding")
    if encoding is not None and encoding.lower() not in (b"identity", b""):
        raise _encoded(encoding)
    body = b""
    pieces: list[bytes] = []
    num_bytes = 0
    deadlines = deadlines or Deadlines()
    try:
        while True:
            with deadlines.within(stall_s):
                message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body = message.get("body", b"")
            num_bytes += len(body)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            pieces.append(body)
            if not message.get("more_body"):
                return body if len(pieces) == 1 else b"".join(pieces)
    except TimeoutError as exc:
        raise _stalled(stall_s) from exc


def bounded(exchange: Exchange, *, max_bytes: int = MAX_SIDE_BYTES, stall_s: float = 30.0) -> Receive:
    """Return a `receive` for the application behind the edge: it waits for a body as calls do, and reads less of it.

    It raises `BodyTooLarge`, `BodyStalled` and `ClientLeft` as `read_body` does; after the body it waits for as long as
    it takes.
    """
    num_bytes, is_whole = 0, False

    async def receive() -> Message:
        nonlocal num_bytes, is_whole
        if is_whole:
            return await exchange.receive()
        try:
            async with asyncio.timeout(stall_s):
                message = await exchange.receive()
        except TimeoutError as exc:
            raise _stalled(stall_s) from exc
        if message["type"] == "http.disconnect":
            raise ClientLeft
        num_bytes += len(message.get("body", b""))
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        is_whole = not message.get("more_body")
        return message

    return receive


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object; raises `InvalidRequest` for anything else, NaN, bad UTF-8 and deep nesting too."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(_why_not_json(body, exc), code="invalid_json") from exc
    if not isinstance(value, dict):
        raise InvalidRequest("The request's body must be a JSON object.", code="invalid_json")
    # Fewer brackets than the bound cannot nest deeper than it: two counts spare nearly every body the walk.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise InvalidRequest(f"The JSON body nests deeper than {MAX_DEPTH} levels.", code="invalid_json")
    return value


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request's body is larger than the {max_bytes:,} bytes that are read here.")


def _stalled(stall_s: float) -> BodyStalled:
    return BodyStalled(f"The request's body stopped coming for {stall_s:g} s.")


def _encoded(encoding: bytes) -> UnsupportedEncoding:
    name = encoding[:64].decode("latin-1")
    return UnsupportedEncoding(f"The request's body is encoded as '{name}': send it without 'content-encoding'.")


def _why_not_json(body: bytes, error: orjson.JSONDecodeError) -> str:
    if not body.strip():
        return "The request's body is empty; a JSON object was expected."
    try:
        body.decode()
    except UnicodeDecodeError as exc:
        return f"The request's body is not valid UTF-8 (byte {exc.start})."
    return f"We could not parse the JSON body of your request: {error}."


def _is_deeper(value: Any, depth: int) -> bool:
    """Walk level by level: no recursion, whatever came."""
    level = [value]
    while level and depth:
        depth -= 1
        below = []
        for item in level:
            inner = item.values() if isinstance(item, dict) else item
            below += [child for child in inner if isinstance(child, (dict, list))]
        level = below
    return bool(level)
