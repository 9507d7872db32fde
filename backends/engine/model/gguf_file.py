"""The GGUF container: its scalar fields, and its tensors as views into the mapped file.

The `gguf` package's own reader takes seconds for a vocabulary of 50,000 entries, of which the engine needs none; here
lists are stepped over.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from backends.engine.model.weights import ModelUnreadable

Scalar = int | float | bool | str

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_VERSIONS = (2, 3)
_INT4_HEADS = {2: 2, 3: 4}
"""Bytes before the codes of a block, in Q4_0 and Q4_1."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in the file; `shape` is (out, in), the other way round than GGUF writes it."""

    shape: tuple[int, ...]
    kind: int
    data: npt.NDArray[np.uint8]

    def unpack(self) -> npt.NDArray[np.float32]:
        """Return the values. Raises `ModelUnreadable` for a quantisation that cannot be unpacked."""
        try:
            values = gguf.dequantize(self.data, gguf.GGMLQuantizationType(self.kind))
        except (ValueError, NotImplementedError) as exc:
            raise ModelUnreadable(f"a tensor is stored as type {self.kind}, which cannot be unpacked: {exc}") from exc
        return np.require(values, dtype=np.float32, requirements="W").reshape(self.shape)

    def unpack_int4(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16], npt.NDArray[np.float16]] | None:
        """Return a Q4_0 or Q4_1 matrix's codes (out, in), scales and least values (out, in / 32); `None` for others.

        A block of 32 values is a scale, in Q4_1 the least value, and 16 bytes: the low halves come first.
        """
        if self.kind not in _INT4_HEADS:
            return None
        head_bytes = _INT4_HEADS[self.kind]
        blocks = self.data.reshape(self.shape[0], -1, head_bytes + 16)
        heads = np.ascontiguousarray(blocks[..., :head_bytes]).view(np.float16)
        nibbles = np.concatenate([blocks[..., head_bytes:] & 15, blocks[..., head_bytes:] >> 4], axis=-1)
        scales = np.ascontiguousarray(heads[..., 0])
        leasts = np.ascontiguousarray(heads[..., 1]) if head_bytes == 4 else scales * np.float16(-8)
        return nibbles.reshape(self.shape), scales, leasts


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file holds; of its lists only the names."""

    fields: dict[str, Scalar]
    tensors: dict[str, StoredTensor]
    lists: frozenset[str]


def open_gguf(path: Path) -> GgufFile:
    """Map a file and read its header. Raises `ModelUnreadable` where it is no GGUF file, or is cut short."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _read(content)
    except (OSError, ValueError, struct.error, KeyError, IndexError) as exc:
        raise ModelUnreadable(f"{path} is not a whole GGUF file: {exc}") from exc


def _read(content: mmap.mmap) -> GgufFile:
    cursor = _Cursor(content)
    magic, version = cursor.bytes(4), cursor.scalar("I")
    if magic != b"GGUF" or version not in _VERSIONS:
        raise ValueError(f"it begins with {magic!r}, version {version}")
    num_tensors, num_fields = cursor.scalar("Q"), cursor.scalar("Q")
    fields: dict[str, Scalar] = {}
    lists = set()
    for _ in range(int(num_fields)):
        name = cursor.string()
        value = cursor.value(int(cursor.scalar("I")))
        if value is None:
            lists.add(name)
        else:
            fields[name] = value
    entries = [_read_entry(cursor) for _ in range(int(num_tensors))]
    alignment = int(fields.get("general.alignment", 32))
    begin = -(-cursor.offset // alignment) * alignment
    tensors = {name: _view(content, begin + at, shape, kind) for name, shape, kind, at in entries}
    return GgufFile(fields, tensors, frozenset(lists))


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    shape = [int(cursor.scalar("Q")) for _ in range(int(cursor.scalar("I")))]
    return name, tuple(reversed(shape)), int(cursor.scalar("I")), int(cursor.scalar("Q"))


def _view(content: mmap.mmap, offset: int, shape: tuple[int, ...], kind: int) -> StoredTensor:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    row_bytes = shape[-1] // block_size * block_bytes
    num_rows = math.prod(shape[:-1])
    data = np.frombuffer(content, dtype=np.uint8, count=num_rows * row_bytes, offset=offset)
    return StoredTensor(shape, kind, data.reshape(num_rows, row_bytes))


class _Cursor:
    """Read little-endian values one after another."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.offset = 0

    def bytes(self, size: int) -> bytes:
        if self.offset + size > len(self._content):
            raise ValueError(f"it ends at byte {len(self._content)}, in the middle of its header")
        self.offset += size
        return self._content[self.offset - size : self.offset]

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]
        return value

    def string(self) -> str:
        return self.bytes(int(self.scalar("Q"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Scalar | None:
        """Read a value; `None` for a list, which is stepped over."""
        if kind == _STRING:
            return self.string()
        if kind != _LIST:
            return self.scalar(_SCALARS[kind])
        inner, count = int(self.scalar("I")), int(self.scalar("Q"))
        if inner in _SCALARS:
            self.bytes(count * struct.calcsize("<" + _SCALARS[inner]))
        else:
            for _ in range(count):
                self.value(inner)
        return None
