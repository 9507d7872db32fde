"""Server-sent events, cut out of a byte stream wherever the network cut it.

Standard: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

from orchestration.core.value import value

MAX_FRAME_BYTES = 16 * 1024 * 1024
_SHORT_BYTES = 64 * 1024


class SseError(ValueError):
    """The stream holds a frame over the limit."""


@value
class SseFrame:
    """One event: its type, its data lines joined by newlines, and its lines as they came, ended by newlines."""

    event: str
    data: bytes
    raw: bytes


class SseParser:
    """Read frames out of bytes. The frames depend on the bytes alone, not on how they were cut.

    Lines end with CR, LF or CRLF. A frame without data (comments only) is dropped, and so is one that the stream's
    end cuts off.
    """

    def __init__(self) -> None:
        self._tail = bytearray()
        self._lines: list[bytes] = []
        self._size_bytes = 0
        self._is_after_cr = False
        self._is_begun = False

    def feed(self, data: bytes) -> list[SseFrame]:
        """Take the next bytes and return the frames that are whole now; raises `SseError`."""
        if not self._is_begun and not self._tail and data.startswith(b"data:"):
            self._is_begun = True  # nothing stands before the first line
        if self._is_begun and not self._lines and not self._is_after_cr and len(self._tail) < _SHORT_BYTES:
            data = bytes(self._tail) + data
            self._tail = bytearray()
            if b"\r" not in data:
                return self._feed_plain(data)
        if self._is_after_cr and data:
            data = data.removeprefix(b"\n")
            self._is_after_cr = False
        self._tail += data
        frames = []
        for line in self._cut_lines():
            if line:
                self._lines.append(line)
                continue
            frame = self._close_frame()
            if frame is not None:
                frames.append(frame)
        if self._size_bytes + len(self._tail) > MAX_FRAME_BYTES:
            raise SseError(f"a frame is over the limit of {MAX_FRAME_BYTES} bytes")
        return frames

    def _feed_plain(self, data: bytes) -> list[SseFrame]:
        """Take bytes that begin a line and end lines with LF alone, as nearly all servers do: frames end at `LF LF`."""
        *whole, rest = data.split(b"\n\n")
        frames = []
        for text in whole:
            if text.startswith(b"data: ") and b"\n" not in text:
                frames.append(SseFrame("", text[6:], text + b"\n\n"))
                continue
            self._lines = [line for line in text.split(b"\n") if line]
            frame = self._close_frame()
            if frame is not None:
                frames.append(frame)
        self._tail = bytearray(rest)
        if len(rest) > MAX_FRAME_BYTES or any(len(frame.raw) > MAX_FRAME_BYTES for frame in frames):
            raise SseError(f"a frame is over the limit of {MAX_FRAME_BYTES} bytes")
        return frames

    def _cut_lines(self) -> list[bytes]:
        """Take the whole lines out of the tail. A CR at its end ends a line now; the LF to come is then skipped."""
        pieces = bytes(self._tail).splitlines(keepends=True) if self._has_line_end() else []
        if not pieces:
            return []
        self._is_after_cr = pieces[-1].endswith(b"\r")
        self._tail = bytearray() if pieces[-1].endswith((b"\r", b"\n")) else bytearray(pieces.pop())
        lines = [piece.rstrip(b"\r\n") for piece in pieces]
        if not self._is_begun:
            self._is_begun = True
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        self._size_bytes += sum(map(len, lines))
        return lines

    def _has_line_end(self) -> bool:
        return b"\n" in self._tail or b"\r" in self._tail

    def _close_frame(self) -> SseFrame | None:
        lines, self._lines, self._size_bytes = self._lines, [], 0
        event = ""
        data = []
        for line in lines:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value.decode("utf-8", "replace")
        if not data:
            return None
        return SseFrame(event=event, data=b"\n".join(data), raw=b"\n".join([*lines, b"", b""]))
