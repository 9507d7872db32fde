"""The supervisor's life: hold the folder, bind the port, start everything, watch it, end it in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway import model_store
from gateway.checks import plan_checks
from gateway.model_store import ModelMissing
from gateway.refusals import StartRefused
from gateway.settings import Settings
from gateway.supervisor import plan
from gateway.supervisor.child import Child, ChildSpec, ChildState
from gateway.supervisor.display import Display
from gateway.supervisor.listening import listen, url_of
from gateway.supervisor.mlflow import HOST, free_port, mlflow_spec
from gateway.supervisor.place import Place
from gateway.supervisor.reloader import Reloader, Source
from gateway.supervisor.required import check_database, check_redis
from gateway.supervisor.state import STATE_FOLDER, StateFolder, make_run_folder
from gateway.supervisor.valkey import valkey_spec


@dataclass(slots=True)
class Children:
    """The children by when they end: calls first, then the log, then what both of them needed."""

    workers: list[Child] = field(default_factory=list)
    parts: list[Child] = field(default_factory=list)
    shippers: list[Child] = field(default_factory=list)
    stores: list[Child] = field(default_factory=list)

    def all(self) -> list[Child]:
        """List every child in the order in which they end."""
        return [*self.workers, *self.parts, *self.shippers, *self.stores]

    def groups(self) -> list[list[Child]]:
        """List the groups in the order in which they end."""
        return [self.workers, self.parts, self.shippers, self.stores]


class Supervisor:
    """Run everything that the settings ask for until SIGTERM or SIGINT; a second signal ends it at once.

    `config_text` is the file's text as it was read: children read that copy, so that all of them, and those
    started again later, work from the same settings; `source` says where changed ones come from. `folder` is the
    working folder.
    """

    def __init__(self, settings: Settings, *, config_text: str, source: Source, folder: Path, display: Display) -> None:
        self._settings = settings
        self._config_text = config_text
        self._source = source
        self._stamp = source.stamp()
        self._environment = source.environment
        self._state = StateFolder(folder / STATE_FOLDER)
        self._display = display
        self._children = Children()
        self._place: Place | None = None
        self._listener: socket.socket | None = None
        self._reloader: Reloader | None = None
        self._signalled = asyncio.Event()
        self._is_ready = False
        self._url = ""
        self._mlflow_uri = settings.mlflow.uri

    async def run(self) -> None:
        """Serve until a signal; raises `Refused` where the start fails, everything that ran already ended."""
        begun = time.monotonic()
        self._state.hold()
        try:
            self._listener = listen(self._settings.server.host, self._settings.server.port)
            self._url = url_of(self._listener)
            self._place = self._make_place()
            self._listen_for_signals()
            if await self._is_started():
                self._announce(time.monotonic() - begun)
                self._follow_settings()
                await self._signalled.wait()
        finally:
            await self._end()

    def progressed(self, child: Child, what: str, done: float, total: float | None) -> None:
        """Show how far a child is."""
        self._display.progress(child.name, what, done, total)

    def changed(self, child: Child, message: str | None) -> None:
        """Write the status file anew, and say what a person should know."""
        if message is not None and not self._signalled.is_set():
            self._display.line(message)
        self._write_status()

    def ended(self, child: Child, pid: int) -> None:
        """Take a dead worker's gauges out of the metrics."""
        if child.name.startswith("worker-") and self._place is not None:
            from prometheus_client.multiprocess import mark_process_dead  # deaths are rare, and starts are not

            mark_process_dead(pid, path=str(self._place.sockets.metrics))  # type: ignore[no-untyped-call]  # half typed

    def _make_place(self) -> Place:
        self._state.ensure_tenant_key()
        place = Place(state=self._state, run=make_run_folder(self._state), environment=self._environment)
        place.sockets.metrics.mkdir()
        place.sockets.config.write_text(self._config_text, encoding="utf-8")
        return place

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end_on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _end_on_signal(self) -> None:
        if not self._signalled.is_set():
            self._signalled.set()
            self._display.line("ending: calls in flight may finish; signal again to end at once")
            return
        for child in self._children.all():
            child.kill()

    def _hang_up(self) -> None:
        """End with the terminal; without one, SIGHUP asks for new settings."""
        if sys.stderr.isatty():
            self._end_on_signal()
        elif self._reloader is not None:
            self._reloader.ask()

    def _follow_settings(self) -> None:
        self._reloader = Reloader(
            self._settings,
            self._config_text,
            stamp=self._stamp,
            source=self._source,
            sockets=self._located().sockets,
            workers=self._children.workers,
            say=self._display.line,
        )
        self._reloader.start()

    async def _is_started(self) -> bool:
        """Start everything; False where a signal came first."""
        starting = asyncio.create_task(self._start_all(), name="start")
        signalled = asyncio.create_task(self._signalled.wait(), name="signal")
        try:
            await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            starting.result()
            return True
        finally:
            starting.cancel()
            signalled.cancel()
            await asyncio.wait({starting, signalled})

    async def _start_all(self) -> None:
        settings, place = self._settings, self._located()
        guard_checks = plan_checks(settings).worker_checks
        if settings.database.url is not None:
            await check_database(settings.database.url.reveal())
        paths = await self._fetch_models()
        if settings.redis.url is None:
            memory_mb = settings.redis.max_memory_mb
            await self._start(self._children.stores, [valkey_spec(place, max_memory_mb=memory_mb)])
        else:
            await check_redis(settings.redis.url.reveal())
        await asyncio.gather(
            self._start(self._children.parts, self._part_specs(paths, guard_checks)),
            self._start_log(),
            self._start(self._children.workers, self._worker_specs()),
        )

    async def _fetch_models(self) -> dict[str, Path]:
        """Return where each model lies, fetching the ones that are not here, several at once."""
        names = plan.models_needed(self._settings)
        missing = [name for name in names if model_store.locate(name) is None]
        for name in missing:
            if name not in model_store.PACKAGED:
                raise StartRefused(str(model_store.missing(name)))
        await self._start(self._children.parts, [plan.fetch_spec(name, self._located()) for name in missing])
        for child in [child for child in self._children.parts if not child.spec.is_restarted]:
            await child.wait_ended()
            self._children.parts.remove(child)
        try:
            return {name: model_store.fetch(name) for name in names}
        except ModelMissing as exc:
            raise StartRefused(str(exc)) from exc

    def _part_specs(self, paths: Mapping[str, Path], guard_checks: list[dict[str, Any]]) -> list[ChildSpec]:
        settings, place = self._settings, self._located()
        specs = []
        if settings.uses_engine and settings.engine.connect is None:
            specs.append(plan.engine_spec(settings, place, model=paths[settings.engine.model]))
        if settings.uses_embedder:
            specs.append(plan.owner_spec(settings, place, model=paths[settings.cache.semantic.model]))
        if guard_checks:
            specs.append(plan.guard_spec(guard_checks, settings, place))
        return specs

    def _worker_specs(self) -> list[ChildSpec]:
        assert self._listener is not None
        descriptor = self._listener.fileno()
        return [
            plan.worker_spec(self._settings, self._located(), index=index, descriptor=descriptor)
            for index in range(self._settings.server.workers)
        ]

    async def _start_log(self) -> None:
        """Start the shipper, and MLflow beside it: the spool keeps what MLflow is not ready for."""
        settings, place = self._settings, self._located()
        starts = []
        if settings.mlflow.serve:
            port = free_port(settings.mlflow.port)
            self._mlflow_uri = f"http://{HOST}:{port}"
            starts.append(self._start(self._children.stores, [mlflow_spec(place, port=port)]))
        shipper = plan.shipper_spec(settings, place, mlflow_uri=self._mlflow_uri)
        await asyncio.gather(*starts, self._start(self._children.shippers, [shipper]))

    async def _start(self, group: list[Child], specs: Iterable[ChildSpec]) -> None:
        """Start children together and wait until all of them are ready."""
        children = [Child(spec, self) for spec in specs]
        group.extend(children)
        for child in children:
            self._display.begin(child.name)
            child.start()
        await asyncio.gather(*(self._await_ready(child) for child in children))

    async def _await_ready(self, child: Child) -> None:
        await child.wait_ready()
        self._display.end(child.name)

    def _announce(self, took_s: float) -> None:
        self._is_ready = True
        self._write_status()
        self._display.close()
        mlflow = f"; MLflow on {self._mlflow_uri}" if self._settings.mlflow.serve else ""
        hint = "lamina chat" if self._url.endswith(":4000") else f"lamina chat --url {self._url}"
        self._display.line(f"ready on {self._url} after {took_s:.1f} s{mlflow}; try: {hint}")

    def _write_status(self) -> None:
        children = {
            child.name: {"pid": child.pid, "state": child.state.value, "restarts": child.restarts}
            for child in self._children.all()
            if child.state is not ChildState.STOPPED
        }
        self._state.write_status(
            {
                "pid": os.getpid(),
                "url": self._url,
                "is_ready": self._is_ready,
                "mlflow": self._mlflow_uri,
                "children": children,
            }
        )

    async def _end(self) -> None:
        """End every child in order, then give back the port, the run folder and the state folder."""
        self._signalled.set()
        self._display.close()
        if self._reloader is not None:
            await self._reloader.aclose()
        if self._listener is not None:
            self._listener.close()  # the workers close theirs as they drain; then nobody listens
        for group in self._children.groups():
            await asyncio.gather(*(child.stop() for child in group))
        if self._place is not None:
            shutil.rmtree(self._place.run, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._state.status_file.unlink()
        self._state.release()

    def _located(self) -> Place:
        assert self._place is not None, "run() makes the place before it starts anything"
        return self._place
