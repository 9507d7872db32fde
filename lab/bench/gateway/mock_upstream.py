"""A fast stand-in for a provider: OpenAI's chat completions, whole and streamed, on loopback.

`python -m lab.bench.gateway.mock_upstream` prints its port. The model `paced` streams ten chunks a second for as many
seconds as `max_tokens` / 10 says; every other model answers at once, in 32 chunks where it is streamed.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

NUM_CHUNKS = 32
GAP_S = 0.1
_TEXT = " ".join(f"word{number}" for number in range(NUM_CHUNKS))
_HEAD = {"id": "chatcmpl-mock", "created": 1700000000, "model": "mock"}
_USAGE = {"prompt_tokens": 16, "completion_tokens": NUM_CHUNKS, "total_tokens": 16 + NUM_CHUNKS}
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class MockUpstream(asyncio.Protocol):
    """Answer one connection's requests, one after the other."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._pacing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            size = _content_length(self._buffer[:end])
            if len(self._buffer) < end + 4 + size:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + size], self._buffer[end + 4 + size :]
            self._answer(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is being streamed."""
        if self._pacing is not None:
            self._pacing.cancel()

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None, "data came"
        if not body:
            self._transport.write(MODELS)
        elif b'"paced"' in body:
            self._pacing = asyncio.get_running_loop().create_task(self._pace(json.loads(body)["max_tokens"]))
        elif b'"stream":true' in body or b'"stream": true' in body:
            self._transport.write(_STREAM_HEAD)
            for chunk in CHUNKS:
                self._transport.write(chunk)
        else:
            self._transport.write(WHOLE)

    async def _pace(self, num_chunks: int) -> None:
        assert self._transport is not None, "data came"
        self._transport.write(_STREAM_HEAD)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(num_chunks):
            self._transport.write(CHUNKS[1])
            await asyncio.sleep(max(0.0, begun + (number + 1) * GAP_S - loop.time()))
        self._transport.write(CHUNKS[-1])


def _content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def _reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def _chunks() -> list[bytes]:
    """Write a stream's chunks; the last one ends it with the reason, the usage and the mark."""
    first = _frame({"role": "assistant", "content": "word0"})
    further = [_frame({"content": f" word{number}"}) for number in range(1, NUM_CHUNKS)]
    usage = json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE}).encode()
    end = _frame({}, "stop") + b"data: " + usage + b"\n\n" + b"data: [DONE]\n\n"
    return [*map(_chunked, (first, *further)), _chunked(end) + b"0\r\n\r\n"]


_CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": _TEXT}}
WHOLE = _reply(json.dumps({**_HEAD, "object": "chat.completion", "usage": _USAGE, "choices": [_CHOICE]}).encode())
MODELS = _reply(b'{"object":"list","data":[{"id":"mock","object":"model"}]}')
CHUNKS = _chunks()


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(MockUpstream, "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until whoever started it is gone


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
