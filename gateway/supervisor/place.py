"""Where one run lives: its folders, its sockets, and the environment of its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.supervisor.state import StateFolder

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Sockets:
    """The addresses inside a run folder."""

    run: Path

    @property
    def engine(self) -> Path:
        """Where the engine listens."""
        return self.run / "engine.sock"

    @property
    def cache(self) -> Path:
        """Where the cache owner listens."""
        return self.run / "cache.sock"

    @property
    def guard(self) -> Path:
        """Where the guardrails worker listens."""
        return self.run / "guard.sock"

    @property
    def shipper(self) -> Path:
        """Where the log shipper answers questions."""
        return self.run / "ship.sock"

    @property
    def valkey(self) -> Path:
        """Where the private Valkey listens."""
        return self.run / "valkey.sock"

    @property
    def metrics(self) -> Path:
        """Where the workers' metrics meet."""
        return self.run / "metrics"

    @property
    def config(self) -> Path:
        """Where the settings lie that are in use."""
        return self.run / "lamina.yaml"

    def control(self, worker: str) -> Path:
        """Where a worker takes new settings; a socket's path has little room for a name."""
        return self.run / f"w{worker.rpartition('-')[2]}.sock"


@dataclass(frozen=True, slots=True)
class Place:
    """One run: the state that stays, the run folder that goes, the environment that children start from."""

    state: StateFolder
    run: Path
    environment: Mapping[str, str]

    @property
    def sockets(self) -> Sockets:
        """Name the addresses of this run."""
        return Sockets(self.run)

    def log(self, name: str) -> Path:
        """Name a child's log."""
        return self.state.path / "logs" / f"{name}.log"

    def python(self, module: str, *arguments: str) -> tuple[str, ...]:
        """Name the command that runs a module of ours; `-P` keeps the working folder's files from hiding ours."""
        return (sys.executable, "-P", "-m", module, *arguments)

    def child_environment(self, *, threads: int = 1, **more: str) -> dict[str, str]:
        """Set the threads before the child imports anything, and keep every library off the internet.

        Passive waiting: spinning at barriers made times 10 to 50 times worse on two cores.
        """
        counts = dict.fromkeys(_ONE_THREAD, str(threads))
        fixed = {
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return {**self.environment, **counts, **fixed, **more}


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
