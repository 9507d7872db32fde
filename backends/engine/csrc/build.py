"""Compile the CPU kernels once per machine, source and torch, and load them."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("ops.cpp")
"""The one text to compile; it includes the headers beside it."""
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-Wno-psabi")
_COMPILERS = ("g++", "c++")
_TIMEOUT_S = 1200.0  # half a minute of CPU time takes its time where twenty others want the same two cores


class KernelsUnavailable(Exception):
    """The kernels cannot be compiled, loaded or trusted here; the message says why."""


def load_kernels(folder: Path, *, progress: Callable[[str, int, int], None]) -> None:
    """Register the kernels as `torch.ops.lamina`, compiling them where `folder` has none for this machine.

    Raises `KernelsUnavailable`.
    """
    library = folder / f"ops-{_fingerprint()}.so"
    if not library.exists():
        progress("compile kernels", 0, 1)
        _compile(library)
        progress("compile kernels", 1, 1)
    if hasattr(torch.ops.lamina, "layer"):
        return  # a process registers them once, from whichever folder
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]  # torch does not annotate it
    except OSError as exc:
        raise KernelsUnavailable(f"{library} cannot be loaded: {exc}") from exc


def _compile(library: Path) -> None:
    """Write the library whole or not at all: another process may look for it at the same time."""
    partial = library.with_suffix(f".{os.getpid()}.part")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(_command(partial), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise KernelsUnavailable(f"the compiler failed: {(done.stderr.strip() or 'no message').splitlines()[0]}")
        partial.replace(library)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise KernelsUnavailable(f"{library} cannot be made: {exc}") from exc
    finally:
        partial.unlink(missing_ok=True)


def _command(output: Path) -> Sequence[str]:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise KernelsUnavailable(f"no C++ compiler is here ({' or '.join(_COMPILERS)})")
    home = Path(torch.__file__).parent
    libraries = (f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10")
    return (compiler, *_FLAGS, f"-isystem{home / 'include'}", str(SOURCE), "-o", str(output), *libraries)


def _fingerprint() -> str:
    """Return a name for all that the library's code depends on."""
    sources = sorted((*SOURCE.parent.glob("*.h"), SOURCE))
    parts = (*(source.read_text() for source in sources), *_FLAGS, torch.__version__, platform.machine(), _cpu_flags())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
