"""Calls between our own processes on one machine: many at once over one Unix socket, each with its deadline.

A frame is two big-endian u32 (length of what follows, length of the header), a JSON header and raw bytes, so
that vectors travel without being written out as text. Request header: `{"id", "method", "params"}`; the client
that gives up sends `{"id", "cancel": true}`. Reply header: `{"id", "result"}`, or `{"id", "error": {"code",
"message"}}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTHS = struct.Struct(">II")

Method = Callable[[Any, bytes], Awaitable[tuple[Any, bytes]]]
"""Answer `(params, payload)` with `(result, payload)`; cancelled when the client gives up or leaves."""


class RpcError(Exception):
    """The other process did not answer the call."""

    code = "rpc_error"


class RpcUnavailable(RpcError):
    """Nobody listens there, or the connection broke, or the bound on calls in flight is met."""

    code = "unavailable"


class RpcTimeout(RpcError):
    """No answer came before the deadline; the other process was told to stop."""

    code = "timeout"


class RpcRefused(RpcError):
    """The other process answered with an error, whose code is `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RpcClient:
    """Call methods of the process behind a Unix socket; connects at the first call and again after a break.

    At most `max_in_flight` calls wait at a time; one more is refused with `RpcUnavailable`.
    """

    def __init__(self, path: Path, *, max_in_flight: int = 4096, connect_timeout_s: float = 1.0) -> None:
        self._path = path
        self._max_in_flight = max_in_flight
        self._connect_timeout_s = connect_timeout_s
        self._waiting: dict[int, asyncio.Future[tuple[Any, bytes]]] = {}
        self._last_id = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def call(
        self, method: str, params: Any = None, *, payload: bytes = b"", timeout_s: float
    ) -> tuple[Any, bytes]:
        """Return the method's result and raw bytes, or raise an `RpcError` within `timeout_s`."""
        if len(self._waiting) >= self._max_in_flight:
            raise RpcUnavailable(f"{self._max_in_flight} calls are waiting for {self._path.name} already")
        self._last_id += 1
        call_id = self._last_id
        try:
            async with asyncio.timeout(timeout_s):
                writer = await self._connect()
                # No name here for the future: the trace of an error that it holds would lead to it.
                self._waiting[call_id] = asyncio.get_running_loop().create_future()
                writer.write(encode_frame({"id": call_id, "method": method, "params": params}, payload))
                await writer.drain()
                return await self._waiting[call_id]
        except TimeoutError as exc:
            raise RpcTimeout(f"{self._path.name} did not answer {method} within {timeout_s:g} s") from exc
        except OSError as exc:
            raise RpcUnavailable(f"{self._path.name} cannot be reached: {exc}") from exc
        finally:
            self._forget(call_id)

    async def aclose(self) -> None:
        """Close the connection; calls in flight end with `RpcUnavailable`."""
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.wait([self._reader_task])

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                async with asyncio.timeout(self._connect_timeout_s):
                    reader, self._writer = await asyncio.open_unix_connection(str(self._path))
                self._reader_task = asyncio.create_task(self._read(reader, self._writer), name="rpc-reader")
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                header, payload = await read_frame(reader)
                future = self._waiting.get(header["id"])
                if future is None or future.done():
                    continue
                if "error" in header:
                    future.set_exception(RpcRefused(header["error"]["code"], header["error"]["message"]))
                else:
                    future.set_result((header["result"], payload))
        except (OSError, EOFError):
            pass
        finally:
            self._writer = None
            writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(RpcUnavailable(f"the connection to {self._path.name} broke"))

    def _forget(self, call_id: int) -> None:
        future = self._waiting.pop(call_id, None)
        if future is None:
            return
        if future.cancelled() and self._writer is not None:
            self._writer.write(encode_frame({"id": call_id, "cancel": True}))
        elif future.done() and not future.cancelled():
            future.exception()  # the break that ended the write was heard of already; asyncio need not warn


class RpcServer:
    """Serve methods on a Unix socket; an exception of a method is its caller's, the server goes on.

    A method's exception with a `code` attribute is sent with that code, any other one as `internal`.
    At most `max_in_flight` calls of one connection run at a time; further ones are refused as `busy`.
    """

    def __init__(self, methods: dict[str, Method], *, max_in_flight: int = 4096) -> None:
        self._methods = methods
        self._max_in_flight = max_in_flight
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Listen on `path`, replacing what an earlier process left there."""
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve_connection, str(path))

    async def aclose(self) -> None:
        """Stop listening, cancel the calls in flight and wait for them."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        running: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                header, payload = await read_frame(reader)
                call_id = header["id"]
                if header.get("cancel"):
                    if call_id in running:
                        running[call_id].cancel()
                elif len(running) >= self._max_in_flight:
                    writer.write(_error_frame(call_id, "busy", f"{self._max_in_flight} calls are running"))
                else:
                    running[call_id] = asyncio.create_task(self._answer(header, payload, writer, running))
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            for call in running.values():
                call.cancel()
            if running:
                await asyncio.wait(running.values())
            writer.close()
            self._connections.discard(task)

    async def _answer(
        self,
        header: dict[str, Any],
        payload: bytes,
        writer: asyncio.StreamWriter,
        running: dict[int, asyncio.Task[None]],
    ) -> None:
        call_id = header["id"]
        try:
            method = self._methods.get(header["method"])
            if method is None:
                writer.write(_error_frame(call_id, "unknown_method", f"no method {header['method']!r}"))
                return
            result, reply = await method(header["params"], payload)
            writer.write(encode_frame({"id": call_id, "result": result}, reply))
            await writer.drain()
        except OSError:
            pass  # the client left; its connection's reader ends with it
        except Exception as exc:  # a method's fault is its caller's to hear, not the server's end
            writer.write(_error_frame(call_id, getattr(exc, "code", "internal"), str(exc) or repr(exc)))
        finally:
            running.pop(call_id, None)


def encode_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Write one frame."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(4 + len(head) + len(payload), len(head)) + head + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Read one frame; raises `EOFError` at the end of the stream and `OSError` for a frame out of bounds."""
    length, head_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if not 4 + head_length <= length <= MAX_FRAME_BYTES:
        raise OSError(f"a frame of {length} bytes with a header of {head_length} cannot be")
    body = await reader.readexactly(length - 4)
    return json.loads(body[:head_length]), body[head_length:]


def _error_frame(call_id: int, code: str, message: str) -> bytes:
    with contextlib.suppress(UnicodeEncodeError):
        return encode_frame({"id": call_id, "error": {"code": code, "message": message}})
    return encode_frame({"id": call_id, "error": {"code": code, "message": repr(message)}})
