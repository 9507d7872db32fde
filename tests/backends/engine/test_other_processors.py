"""Kernels compiled for lesser processors than this one agree with plain torch: their stand-ins compute the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LEVELS = {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512vl"}
"""What to compile for, and the flag in /proc/cpuinfo of a processor that can run it."""

CHECK = """
import sys
from pathlib import Path
import torch
from backends.engine.csrc import build
from backends.engine.csrc.check import _SHAPE, check_kernels
build._FLAGS = tuple(sys.argv[2] if flag == "-march=native" else flag for flag in build._FLAGS)
build.load_kernels(Path(sys.argv[1]), progress=lambda *_: None)
for dtype in (torch.float32, torch.bfloat16):
    for quantization in ("none", "int8", "int4"):
        for kv_dtype in (None, torch.int8):
            check_kernels(_SHAPE, dtype, quantization, kv_dtype)
"""  # in a process of its own: one registers the kernels once


@pytest.mark.long
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("level", LEVELS)
def test_kernels_for_lesser_processors_pass_their_check(tmp_path: Path, level: str) -> None:
    if LEVELS[level] not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this processor has no {LEVELS[level]}")

    command = (sys.executable, "-c", CHECK, str(tmp_path), f"-march={level}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)

    assert done.returncode == 0, done.stderr
