"""How much memory the pool may take where nobody said."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.engine.model.shape import ModelShape

_CPU_SHARE = 0.125
_CPU_LIMIT_BYTES = 2 << 30
_GPU_SHARE = 0.8


def pool_bytes(device: torch.device) -> int:
    """Return the pool's size on this device: most of a GPU's free memory, a modest part of a machine's."""
    if device.type == "cuda":
        return int(free_bytes(device) * _GPU_SHARE)
    return min(int(free_bytes(device) * _CPU_SHARE), _CPU_LIMIT_BYTES)


def free_bytes(device: torch.device) -> int:
    """Return what is left of a GPU's memory, or of this machine's or the container's around us."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available_bytes()


def page_bytes(shape: ModelShape, *, page_size: int, kv_dtype: torch.dtype) -> int:
    """Return what a page takes over all layers; int8 has a float32 scale per token and head beside the numbers."""
    scales = 2 * shape.num_layers * shape.num_kv_heads * torch.float32.itemsize if kv_dtype is torch.int8 else 0
    return page_size * (shape.kv_bytes_per_token(kv_dtype.itemsize) + scales)


def _available_bytes() -> int:
    """Return what this machine, or the container around us, has left."""
    left = [_meminfo_bytes()]
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    current = _read_number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None and current is not None:
        left.append(max(0, limit - current))
    return min(left)


def _meminfo_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _CPU_LIMIT_BYTES


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # no such limit, or "max"
