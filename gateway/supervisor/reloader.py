"""Hot reload: a changed file is validated whole, prepared by every worker, and only then used by all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.refusals import Refused, SettingsError
from gateway.settings import DEFAULT_FILE, Settings, mark_of, parse_settings, read_config
from gateway.supervisor.changes import check_change
from gateway.supervisor.child import Child, ChildState
from gateway.supervisor.place import Sockets
from orchestration.core.rpc import RpcClient, RpcError, RpcUnavailable

POLL_S = 0.5
_PREPARE_S = 60.0
_COMMIT_S = 10.0
Stamp = tuple[int, int, int] | None
"""What changes when a file does."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where settings come from: `config` is the file that was named, None for `lamina.yaml` where there is one."""

    config: Path | None
    environment: Mapping[str, str]

    def stamp(self) -> Stamp:
        """Return what changes when the file does; None where there is no file."""
        try:
            stat = (self.config or DEFAULT_FILE).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def read(self) -> str:
        """Return the file's text."""
        return read_config(self.config)


class Reloader:
    """Follow the file, and SIGHUP by `ask`. What cannot be used is refused in one line, and the old settings stay.

    `stamp` is the source's when `text` was read. A worker that died meanwhile starts from the settings in use; one
    that started from older ones is handed them.
    """

    def __init__(
        self,
        settings: Settings,
        text: str,
        *,
        stamp: Stamp,
        source: Source,
        sockets: Sockets,
        workers: Sequence[Child],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._mark = mark_of(text)
        self._stamp = stamp
        self._source = source
        self._sockets = sockets
        self._workers = workers
        self._say = say
        self._held: dict[int, str] = {}
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the file."""
        self._task = asyncio.create_task(self._follow(), name="reloader")

    def ask(self) -> None:
        """Read the file again, changed or not."""
        self._asked.set()

    async def aclose(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        used = seen = self._stamp
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            is_asked = self._asked.is_set()
            self._asked.clear()
            stamp = self._source.stamp()
            # A file that is still being written changes between two looks.
            if is_asked or (stamp != used and stamp == seen):
                used = stamp
                await self._reload()
            else:
                await self._align()
            seen = stamp

    async def _reload(self) -> None:
        try:
            text = self._source.read()
            new = parse_settings(text, environment=self._source.environment)
            check_change(self._settings, new)
            num_workers = await self._hand_over(text)
        except (Refused, OSError) as exc:
            self._say(f"new settings refused, the old ones stay: {exc}")
            return
        self._settings = new
        self._say(f"new settings are in use, by {num_workers} of {len(self._workers)} workers")

    async def _hand_over(self, text: str) -> int:
        """Prepare everywhere, then commit everywhere; raises `SettingsError` where one worker cannot."""
        file = self._sockets.config
        scratch = file.with_suffix(".next")
        scratch.write_text(text, encoding="utf-8")
        ready = [child for child in self._workers if child.state is ChildState.READY and child.pid is not None]
        faults = await asyncio.gather(*(self._prepare(child, scratch) for child in ready))
        if problem := next((fault for fault in faults if fault is not None), None):
            await asyncio.gather(*(self._tell(child, "discard", _COMMIT_S) for child in ready))
            raise SettingsError(problem)
        scratch.replace(file)
        self._mark = mark_of(text)
        return sum(await asyncio.gather(*(self._commit(child) for child in ready)))

    async def _align(self) -> None:
        """Hand the settings in use to a worker that started from older ones while they were being changed."""
        for child in self._workers:
            pid = child.pid
            if child.state is not ChildState.READY or pid is None:
                continue
            if self._held.get(pid, child.ready.get("settings")) != self._mark:
                if await self._prepare(child, self._sockets.config) is None:
                    await self._commit(child)
                else:
                    child.restart()  # it cannot go on with what all others have left
                    self._held[pid] = self._mark
        self._held = {pid: mark for pid, mark in self._held.items() if pid in _pids(self._workers)}

    async def _prepare(self, child: Child, config: Path) -> str | None:
        """Return why a worker cannot use the settings; one that is gone will read them when it is back."""
        try:
            await self._call(child, "prepare", _PREPARE_S, config=str(config))
        except RpcUnavailable:
            return None
        except RpcError as exc:
            return str(exc)
        return None

    async def _commit(self, child: Child) -> bool:
        pid = child.pid
        is_done = await self._tell(child, "commit", _COMMIT_S)
        if is_done and pid is not None:
            self._held[pid] = self._mark
        return is_done

    async def _tell(self, child: Child, method: str, timeout_s: float) -> bool:
        try:
            return bool(await self._call(child, method, timeout_s))
        except RpcError:
            return False  # `_align` looks after it

    async def _call(self, child: Child, method: str, timeout_s: float, **params: str) -> object:
        client = RpcClient(self._sockets.control(child.name))
        try:
            result, _ = await client.call(method, params, timeout_s=timeout_s)
        finally:
            await client.aclose()
        return result


def _pids(workers: Iterable[Child]) -> set[int | None]:
    return {child.pid for child in workers}
