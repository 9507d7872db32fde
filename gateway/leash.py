"""Run a program that is not ours as a child that cannot outlive us: `python -m gateway.leash [--lock F] -- CMD ARGS`.

The program ends when stdin closes (the supervisor is gone), when this process gets SIGTERM, and, on Linux, when
this process itself is killed. What it prints goes to stderr, the log; stdout stays free for status lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

GRACE_S = 8.0
LOCK_WAIT_S = 15.0
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the command after `--` and return its exit status; holds `--lock`'s file while it runs."""
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    if options[:1] == ["--lock"] and not _hold(options[1]):
        sys.stderr.write(f"{options[1]} is still held by an earlier {command[0]}\n")
        return 1
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    # The group is the program's own, so that what it starts ends with it; nothing else runs in this process
    # between fork and exec, so the hook is safe.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=(lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)) if libc else None,
    )

    def end(_signal: int, _frame: FrameType | None) -> None:
        _signal_group(process.pid, signal.SIGTERM)
        threading.Thread(target=_kill_late, args=(process.pid,), daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    threading.Thread(target=_wait_for_end, name="lifeline", daemon=True).start()
    status = process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _hold(path: str) -> bool:
    """Lock the file for this process's life, waiting a while for the earlier holder to end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _kill_late(group: int) -> None:
    time.sleep(GRACE_S)
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it may have ended
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
