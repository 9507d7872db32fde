"""The state folder `.lamina/`, held by one supervisor at a time, and the short private folder for sockets."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.refusals import StartRefused

STATE_FOLDER = Path(".lamina")
MAX_SOCKET_PATH_BYTES = 107
_LONGEST_SOCKET = "/valkey.sock"


class StateFolder:
    """The folder that survives a restart; `hold` makes it this process's own until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    @property
    def spool(self) -> Path:
        """Where workers append call records."""
        return self.path / "spool"

    @property
    def status_file(self) -> Path:
        """Where the supervisor writes what runs."""
        return self.path / "status.json"

    @property
    def tenant_key_file(self) -> Path:
        """Where the key lies that turns bearers into tenants."""
        return self.path / "tenant.key"

    @property
    def database_url(self) -> str:
        """Name the SQLite database that serves where no other one is set."""
        return f"sqlite:///{self.path / 'lamina.db'}"

    def hold(self) -> None:
        """Create the folder and lock it; raises `StartRefused` where another supervisor holds it."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise StartRefused(f"cannot write the state folder {self.path}: {exc.strerror}") from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.read(descriptor, 32).decode().strip()
            os.close(descriptor)
            raise StartRefused(
                f"another 'lamina serve' (pid {holder}) holds {self.path}: stop it, or serve from another folder"
            ) from exc
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._lock = descriptor
        for folder in (self.spool, self.path / "logs", self.path / "cache"):
            folder.mkdir(mode=0o700, exist_ok=True)

    def release(self) -> None:
        """Give the folder up; the lock's file stays, so that nobody locks another one of the same name."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_held(self) -> bool:
        """Tell whether a supervisor runs here, without disturbing it."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def ensure_tenant_key(self) -> None:
        """Create the tenant key where there is none; a new one would cut every tenant from its cached answers."""
        if self.tenant_key_file.exists():
            return
        scratch = self.tenant_key_file.with_suffix(".new")
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        scratch.rename(self.tenant_key_file)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace the status file in one step."""
        scratch = self.status_file.with_suffix(".new")
        scratch.write_text(json.dumps(status))
        scratch.rename(self.status_file)

    def read_status(self) -> dict[str, Any]:
        """Return what the supervisor last wrote; empty where it wrote nothing."""
        try:
            status = json.loads(self.status_file.read_text())
        except (OSError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}


def make_run_folder(state: StateFolder) -> Path:
    """Make a private folder with a path short enough for sockets, and remove the one that a killed run left."""
    marker = state.path / "run"
    if marker.exists():
        left = Path(marker.read_text().strip())
        if left.name.startswith("lamina-"):
            shutil.rmtree(left, ignore_errors=True)
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len("/lamina-12345678") + len(_LONGEST_SOCKET) > MAX_SOCKET_PATH_BYTES:
        base = "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="lamina-", dir=base))
    marker.write_text(str(folder))
    return folder
