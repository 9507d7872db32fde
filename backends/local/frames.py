"""The engine link's frames: a big-endian u32, the length, and one msgpack map."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """What came is no frame of the link."""


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """Write one frame."""
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cut a byte stream into messages, wherever the network cut it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take the next bytes and return the messages that are whole now; raises `FrameError`."""
        self._buffer += data
        messages = []
        position = 0
        while len(self._buffer) - position >= _LENGTH.size:
            length = _LENGTH.unpack_from(self._buffer, position)[0]
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            end = position + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(self._buffer[position + _LENGTH.size : end]))
            position = end
        del self._buffer[:position]
        return messages


def _decode(body: bytearray) -> dict[str, Any]:
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except ValueError as exc:  # the base of all that msgpack raises
        raise FrameError(f"a frame of {len(body)} bytes is no msgpack") from exc
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise FrameError("a frame holds no map with an 'op'")
    return message
