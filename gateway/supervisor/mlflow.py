"""The MLflow server as a child: SQLite under the state folder, one worker, nothing sent home."""

from __future__ import annotations

import asyncio
import socket

from gateway.refusals import StartRefused
from gateway.supervisor.child import ChildSpec
from gateway.supervisor.place import Place

HOST = "127.0.0.1"
_NUM_PORTS_TRIED = 50


def mlflow_spec(place: Place, *, port: int) -> ChildSpec:
    """Describe the child that serves MLflow's page and its trace intake on `port`."""
    folder = place.state.path / "mlflow"
    folder.mkdir(mode=0o700, exist_ok=True)
    arguments = {
        "--backend-store-uri": f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination": str(folder / "artifacts"),
        "--host": HOST,
        "--port": str(port),
        "--workers": "1",
    }
    options = [word for pair in arguments.items() for word in pair]
    return ChildSpec(
        name="mlflow",
        command=place.python("gateway.leash", "--", *place.python("mlflow", "server", *options)),
        environment=place.child_environment(
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",  # its job runner is a second process that nobody here needs
            MLFLOW_DISABLE_TELEMETRY="true",
            DO_NOT_TRACK="true",
            GIT_PYTHON_REFRESH="quiet",
        ),
        log=place.log("mlflow"),
        answers=lambda: _answers(port),
        stop_s=15.0,
    )


def free_port(wanted: int) -> int:
    """Return the first free port from `wanted` on (0: any); raises `StartRefused` where there is none near it."""
    for port in range(wanted, min(wanted + _NUM_PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StartRefused(f"mlflow.port: the {_NUM_PORTS_TRIED} ports from {wanted} on are all taken; set another one")


async def _answers(port: int) -> bool:
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET /health HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
