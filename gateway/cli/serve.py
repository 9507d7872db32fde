"""`lamina serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from gateway.settings import load_settings, process_environment, read_config
from gateway.supervisor.display import make_display
from gateway.supervisor.reloader import Source
from gateway.supervisor.supervisor import Supervisor


def run(*, config: Path | None, overrides: Mapping[str, str]) -> None:
    """Serve until a signal; raises `Refused` where the start is refused.

    Options of the command line become overrides in the environment, so that every child sees them too.
    """
    environment = process_environment() | {f"LAMINA_{key}": value for key, value in overrides.items()}
    settings = load_settings(config, environment=environment)
    display = make_display()
    supervisor = Supervisor(
        settings,
        config_text=read_config(config),
        source=Source(config, environment),
        folder=Path.cwd(),
        display=display,
    )
    try:
        asyncio.run(supervisor.run())
    finally:
        display.close()
