"""One worker: the pipeline behind the listening socket that the supervisor bound.

`python -m gateway.worker --fd N --index I --run-dir D --state D --config F`

SIGTERM drains: the socket is closed, calls in flight get `server.drain_s`, then everything ends, the log last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
import uvloop

from gateway.app import create_app
from gateway.checks import secrets_mask
from gateway.control import Control
from gateway.generations import ASGIApp, Generation, Generations
from gateway.live import LiveCalls
from gateway.metrics import Metrics
from gateway.protocol import LeanProtocol
from gateway.refusals import Refused
from gateway.settings import Settings, load_settings, mark_of, process_environment, read_config
from gateway.socket_protocol import SocketProtocol
from gateway.supervisor.place import Sockets
from gateway.supervisor.state import StateFolder
from gateway.wired import Surroundings
from gateway.wiring import wire
from logging_layer.spool import Spool
from orchestration.core.lifeline import follow_supervisor, report
from orchestration.core.memory import settle_memory
from orchestration.core.process_log import start_log

ORPHAN_GRACE_S = 5.0
"""How long calls in flight have once the supervisor is gone: the engine and the stores are ending as well."""


class _Server(uvicorn.Server):
    """Uvicorn without its own signals, which would end the process before the parts are closed.

    `mark` names the settings that it starts with.
    """

    def __init__(self, config: uvicorn.Config, *, mark: str) -> None:
        super().__init__(config)
        self._mark = mark

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the worker."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell the supervisor once calls are taken."""
        await super().startup(sockets)
        settle_memory()
        report("ready", settings=self._mark)

    def drain(self) -> None:
        """Take no more calls and let those in flight end; asked twice, end them."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def main() -> int:
    """Serve until SIGTERM; returns the exit status."""
    options = _parser().parse_args()
    start_log(logging.WARNING)
    follow_supervisor(grace_s=ORPHAN_GRACE_S)
    allow_many_files()
    try:
        mark = mark_of(read_config(options.config))
        settings = load_settings(options.config, environment=process_environment())
        mask = secrets_mask() if settings.content == "full" else None
        start_log(logging.WARNING, is_json=settings.server.log_format == "json", mask=mask)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, options, mark=mark))
    except Refused as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


async def _serve(settings: Settings, options: argparse.Namespace, *, mark: str) -> None:
    draining = asyncio.Event()
    metrics = Metrics((), folder=Sockets(options.run_dir).metrics)
    place = Surroundings(
        state=StateFolder(options.state),
        sockets=Sockets(options.run_dir),
        folder=Path.cwd(),
        worker=f"worker-{options.index}",
        is_draining=draining.is_set,
        spool=Spool(StateFolder(options.state).spool, worker=f"worker-{options.index}"),
        live=(live := LiveCalls(f"worker-{options.index}")),
        cache_metrics=metrics.cache,
    )
    assert place.spool is not None, "it is made above"

    def build(config: Path) -> Generation:
        return _generation(load_settings(config, environment=process_environment()), place, metrics)

    first = _generation(settings, place, metrics)
    generations = Generations(first)
    control = Control(
        generations,
        build=build,
        views={
            "live": lambda params: live.view(params["seen"]),
            "backends": lambda _params: generations.parts.describe_backends(),
        },
        methods={"feedback": lambda params, payload: generations.parts.take_feedback(params, payload)},
    )
    server = _Server(_config(settings, generations), mark=mark)

    def end() -> None:
        draining.set()
        generations.drain()
        server.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    forget_generators()
    await place.spool.start()
    try:
        await first.parts.start()
        await control.start(place.sockets.control(place.worker))
        await server.serve(sockets=[socket.socket(fileno=options.fd)])
    finally:
        await control.aclose()
        await generations.aclose()
        metrics.tell()
        await place.spool.aclose()


def allow_many_files() -> None:
    """Raise this process's bound on open files as far as it may: a stream takes two, its client's and its backend's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def forget_generators() -> None:
    """Let the event loop keep no list of the asynchronous generators that have begun.

    It closes at its own end what is on the list, which here is nothing: every layer closes the next one. A call makes a
    dozen generators, and a weak reference to each took a twelfth of its CPU. One that is lost is still closed.
    """
    sys.set_asyncgen_hooks(firstiter=None, finalizer=sys.get_asyncgen_hooks().finalizer)


def _generation(settings: Settings, place: Surroundings, metrics: Metrics) -> Generation:
    wired = wire(settings, place)
    return Generation(create_app(wired.parts, metrics=metrics), wired)


def _config(settings: Settings, app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=LeanProtocol,
        ws=SocketProtocol,
        ws_max_size=int(settings.server.max_body_mb * 1024 * 1024),
        ws_per_message_deflate=False,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_s)),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gateway.worker", description="Serve an inherited socket.")
    parser.add_argument("--fd", type=int, required=True, help="the listening socket's descriptor")
    parser.add_argument("--index", type=int, required=True, help="the worker's number")
    parser.add_argument("--run-dir", type=Path, required=True, help="the folder of the run's sockets")
    parser.add_argument("--state", type=Path, required=True, help="the state folder")
    parser.add_argument("--config", type=Path, required=True, help="the settings' file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
