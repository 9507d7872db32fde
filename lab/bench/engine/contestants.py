"""Who is measured: our server, one that runs already, llama.cpp's, vLLM's; each started here and ended here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from lab.bench.engine.link_client import find_engine
from lab.bench.engine.processes import Process, free_port, start, stop, wait_until

OUR_MODEL = "smollm2-135m-instruct"
_OFFLINE = ("HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "DO_NOT_TRACK=1", "VLLM_NO_USAGE_STATS=1")
_BITS = {"fp32": 32, "bf16": 16, "f16": 16, "int8": 8, "q8": 8, "int4": 4, "q4": 4, "w8a8": 8}
_OURS = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
"""The engine's settings by precision of the weights."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many sequences a server must hold at once, and how many tokens each of them."""

    num_slots: int
    tokens_per_slot: int


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: its address, the model's name there, and the process whose family is measured."""

    name: str
    bits: int
    is_ours: bool
    url: str
    model: str
    pid: int | None = None
    process: Process | None = None
    link: str | None = None
    """Where the engine's link is, for one that is asked over that instead of over HTTP."""

    @property
    def host_port(self) -> tuple[str, int]:
        """Return where it listens."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    async def aclose(self) -> None:
        """End it, if it was started here."""
        if self.process is not None:
            await stop(self.process)


class Contestant(Protocol):
    """One that can be started."""

    @property
    def name(self) -> str:
        """Name it in the table."""
        ...

    async def start(self, folder: Path, shape: Shape) -> Sequence[Running]:
        """Start it in an empty folder and wait until it answers; raises `ServerFailed`.

        Gives each way in which it is measured; the first one owns the process.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lamina:
    """Our own `lamina serve`, with its default settings but for the weights' precision and what `settings` changes.

    `with_link` measures its engine over the engine's own link, too, where neither HTTP nor text costs anything.
    """

    precision: str
    settings: Mapping[str, Mapping[str, Any]]
    with_link: bool = False
    timeout_s: float = 300.0

    @property
    def name(self) -> str:
        """Name it by its precision."""
        return f"lamina {self.precision}"

    async def start(self, folder: Path, shape: Shape) -> Sequence[Running]:
        """Start every part of it."""
        port = free_port()
        folder.mkdir(parents=True)
        (folder / "lamina.yaml").write_text(json.dumps(self._settings(shape)))  # JSON is YAML
        command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--port", str(port)]
        process = start(self.name, command, folder=folder)
        running = Running(
            name=self.name, bits=bits_of(self.precision), is_ours=True, url=f"http://127.0.0.1:{port}",
            model=OUR_MODEL, pid=process.pid, process=process,
        )  # fmt: skip
        await _until_ready(running, "/health/ready", timeout_s=self.timeout_s)
        found = find_engine(process.pid) if self.with_link else None
        if found is None:
            return [running]
        pid, link = found
        return [running, replace(running, name=f"{self.name}, link", pid=pid, link=link, process=None)]

    def _settings(self, shape: Shape) -> dict[str, dict[str, Any]]:
        settings = {section: dict(values) for section, values in self.settings.items()}
        engine = {**_OURS[self.precision], **settings.get("engine", {})}
        if shape.num_slots > 64:
            engine.setdefault("max_num_seqs", shape.num_slots)
        return {**settings, "engine": engine}


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp's `llama-server` with a GGUF file: as many slots as clients, no cache of whole prompts."""

    server: Path
    gguf: Path
    label: str
    timeout_s: float = 120.0

    @property
    def name(self) -> str:
        """Name it by its weights."""
        return f"llama.cpp {self.label}"

    async def start(self, folder: Path, shape: Shape) -> Sequence[Running]:
        """Start it with a thread per core."""
        port, threads = free_port(), str(len(os.sched_getaffinity(0)))
        context = shape.num_slots * shape.tokens_per_slot
        command = [
            str(self.server), "-m", str(self.gguf), "--host", "127.0.0.1", "--port", str(port),
            "-np", str(shape.num_slots), "-c", str(context), "-t", threads, "-tb", threads, "-cb", "--cache-ram", "0",
        ]  # fmt: skip
        process = start(self.name, command, folder=folder, environment=_OFFLINE)
        running = Running(
            name=self.name, bits=bits_of(self.label), is_ours=False, url=f"http://127.0.0.1:{port}", model="m",
            pid=process.pid, process=process,
        )  # fmt: skip
        await _until_ready(running, "/health", timeout_s=self.timeout_s)
        return [running]


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's server on the CPU with a Hugging Face folder, in bfloat16, with a thread per core."""

    command: Path
    folder: Path
    kv_gib: int = 2
    timeout_s: float = 400.0

    @property
    def name(self) -> str:
        """Name it by its precision."""
        return "vllm bf16"

    async def start(self, folder: Path, shape: Shape) -> Sequence[Running]:
        """Start it; this takes a minute or two."""
        port, cores = free_port(), sorted(os.sched_getaffinity(0))
        bind = ",".join(map(str, cores))
        command = [
            # Its own folder of commands comes first, as it starts others by name.
            "sh", "-c", 'PATH="$0:$PATH"; export PATH; exec "$@"', str(self.command.parent),
            str(self.command), "serve", str(self.folder), "--served-model-name", "m", "--dtype", "bfloat16",
            "--max-model-len", str(max(2048, shape.tokens_per_slot)), "--max-num-seqs", str(shape.num_slots),
            "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        environment = (*_OFFLINE, f"VLLM_CPU_KVCACHE_SPACE={self.kv_gib}", f"VLLM_CPU_OMP_THREADS_BIND={bind}")
        process = start(self.name, command, folder=folder, environment=environment)
        running = Running(
            name=self.name, bits=16, is_ours=False, url=f"http://127.0.0.1:{port}", model="m",
            pid=process.pid, process=process,
        )  # fmt: skip
        await _until_ready(running, "/health", timeout_s=self.timeout_s)
        return [running]


@dataclass(frozen=True, slots=True)
class Remote:
    """A server that runs already; with its process id its CPU time is measured, too."""

    url: str
    model: str
    pid: int | None

    @property
    def name(self) -> str:
        """Name it by its address."""
        return self.url

    async def start(self, folder: Path, shape: Shape) -> Sequence[Running]:
        """Do nothing but describe it."""
        return [Running(name=self.name, bits=0, is_ours=True, url=self.url, model=self.model, pid=self.pid)]


def our_precisions() -> Sequence[str]:
    """Return the precisions of weights by which our own server can be started."""
    return list(_OURS)


def bits_of(label: str) -> int:
    """Return the bits of a weight by the name of a precision, as in `bf16`, `Q8_0` or `int4`; 0 where unknown."""
    return next((bits for name, bits in _BITS.items() if name in label.lower()), 0)


async def _until_ready(running: Running, path: str, *, timeout_s: float) -> None:
    """Return once the server answers; one that does not is ended, and `ServerFailed` raised."""
    assert running.process is not None
    try:
        await wait_until(running.process, running.host_port, path, timeout_s=timeout_s)
    except BaseException:
        await running.aclose()
        raise
