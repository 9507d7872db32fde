"""The one listening socket: bound by the supervisor, inherited by every worker."""

from __future__ import annotations

import errno
import socket

from gateway.refusals import StartRefused

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen, without SO_REUSEPORT: two servers would silently share the port.

    Raises `StartRefused` where the port is taken or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise StartRefused(f"server.host: '{host}' is no address: {exc}") from exc
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise StartRefused(
                f"port {port} on {host} is taken: stop what listens there, or serve with --port {port + 1}"
            ) from exc
        raise StartRefused(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Name the address as a browser on this machine would."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # every address of this machine, so also the loopback one
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
