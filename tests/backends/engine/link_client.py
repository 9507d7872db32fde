"""The other end of the engine link, as small as can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

Message = dict[str, Any]


class LinkClient:
    """One connection; every wait has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str) -> LinkClient:
        """Connect to `unix:///path` or `tcp://host:port`."""
        kind, _, rest = address.partition("://")
        if kind == "unix":
            return cls(*await asyncio.open_unix_connection(rest))
        host, _, port = rest.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, **message: object) -> None:
        """Send one message."""
        body = msgpack.packb(message)
        self.writer.write(len(body).to_bytes(4, "big") + body)
        await self.writer.drain()

    async def submit(self, request_id: int, prompt: list[int], **changes: object) -> None:
        """Send a greedy submission."""
        message: Message = {
            "max_tokens": 4, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": None, "stop_ids": [],
            "ignore_eos": True, "logprobs": None, "salt": "", "priority": 0,
        }  # fmt: skip
        await self.send(op="submit", id=request_id, prompt=prompt, **{**message, **changes})

    async def receive(self, *, timeout_s: float = 60.0) -> Message:
        """Return the next message; raises `asyncio.IncompleteReadError` where the connection is closed."""
        async with asyncio.timeout(timeout_s):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            message: Message = msgpack.unpackb(await self._reader.readexactly(size))
            return message

    async def answer(self, request_id: int) -> tuple[list[int], str]:
        """Return a request's tokens and its end, dropping whatever else comes."""
        tokens: list[int] = []
        while True:
            message = await self.receive()
            for row in message["rows"] if message["op"] == "step" else ():
                tokens += row[1] if row[0] == request_id else []
                if row[0] == request_id and row[3] is not None:
                    return tokens, row[3]

    async def stats_until(self, holds: Callable[[Message], bool], *, timeout_s: float = 60.0) -> Message:
        """Ask for the stats until something holds of them."""
        async with asyncio.timeout(timeout_s):
            while True:
                await self.send(op="stats")
                message = await self.receive()
                if message["op"] == "stats" and holds(message):
                    return message

    async def aclose(self) -> None:
        """Close the connection."""
        self.writer.close()
        await self.writer.wait_closed()
