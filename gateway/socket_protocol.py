"""The WebSocket protocol under uvicorn: the application says when a socket ends, and nobody dead is waited for."""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class SocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's own, but for four things.

    At a shutdown it leaves an open socket to the application, which ends it after the running answer; uvicorn would
    cut it off. A client that answers no ping is dropped at once: what waits to be written would hold the call for
    ever. Writing to a socket that was closed meanwhile is the client's leaving, and a handshake that was refused is
    complete: neither is a fault.
    """

    def shutdown(self) -> None:
        """Drop what has not become a socket yet; the others hear of it from the application."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """Drop the connection."""
        super().keepalive_timeout()
        self.transport.abort()

    async def send(self, message: ASGISendEvent) -> None:
        """Write one of the application's events; waits while the client does not read."""
        try:
            await super().send(message)
        except RuntimeError as exc:
            if self.close_sent:
                raise ClientDisconnected from exc
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # refused, and so complete; uvicorn would log a fault
