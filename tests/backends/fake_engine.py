"""A scripted engine that speaks the link: what arrives is kept, what it answers is told it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backends.local.frames import FrameReader, encode_frame

Message = dict[str, Any]
INFO: Message = {
    "op": "info",
    "name": "real-model",
    "revision": "r1",
    "vocab_size": 49152,
    "max_len": 256,
    "eos_ids": [2],
    "dtype": "bfloat16",
    "device": "cpu",
    "page_size": 16,
    "num_pages": 64,
    "max_num_seqs": 8,
}


def step(
    request_id: int, token_ids: Sequence[int], *, finish: str | None = None, cached: int = 0, logprobs: Any = None
) -> Message:
    """Make a frame of one row."""
    return {"op": "step", "rows": [[request_id, list(token_ids), logprobs, finish, cached]]}


class FakeEngine:
    """Listen on a socket; `on_submit` gives the frames to answer a submission with."""

    def __init__(self, path: Path, *, on_submit: Callable[[Message], Sequence[Message]] = lambda message: ()) -> None:
        self.path = path
        self.info = dict(INFO)
        self.stats: Message = {"running": 3, "kv_usage": 0.5}
        self.on_submit = on_submit
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.submitted: list[Message] = []
        self.num_connections = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"unix://{self.path}"

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def stop(self) -> None:
        """Die: close the socket and every connection."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.path.unlink(missing_ok=True)

    def send(self, message: Message) -> None:
        """Send a frame on the newest connection."""
        self._writers[-1].write(encode_frame(message))

    def send_bytes(self, data: bytes) -> None:
        self._writers[-1].write(data)

    async def next_message(self, op: str) -> Message:
        """Wait for the next message of a sort, skipping others."""
        async with asyncio.timeout(30):
            while True:
                message = await self.received.get()
                if message["op"] == op:
                    return message

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        self._writers.append(writer)
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for message in frames.feed(data):
                    self._answer(message, writer)
        except OSError:
            pass
        finally:
            self.received.put_nowait({"op": "gone"})
            writer.close()
            self._tasks.discard(task)

    def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        match message["op"]:
            case "hello":
                writer.write(encode_frame(self.info))
            case "stats":
                writer.write(encode_frame({"op": "stats", **self.stats}))
            case "submit":
                self.submitted.append(message)
                for frame in self.on_submit(message):
                    writer.write(encode_frame(frame))
        self.received.put_nowait(message)
