"""What a person sees of the start: moving lines on a terminal, plain ones elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol


class Display(Protocol):
    """Show progress by part, and lines."""

    def begin(self, part: str) -> None:
        """Show that a part starts."""
        ...

    def progress(self, part: str, what: str, done: float, total: float | None) -> None:
        """Show how far a starting part is."""
        ...

    def end(self, part: str) -> None:
        """Show that a part has started."""
        ...

    def line(self, text: str) -> None:
        """Print one line for good."""
        ...

    def close(self) -> None:
        """Stop moving; lines may still be printed."""
        ...


def make_display() -> Display:
    """Choose by whether stderr is a terminal."""
    if not sys.stderr.isatty():
        return PlainDisplay()
    from gateway.supervisor.terminal import TerminalDisplay  # the drawing library is not for services

    return TerminalDisplay()


class PlainDisplay:
    """Print one line where a part begins another piece of work, and one when it is ready."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def begin(self, part: str) -> None:
        """Say nothing yet: what a part does comes with its progress."""

    def progress(self, part: str, what: str, done: float, total: float | None) -> None:
        """Print each piece of work once, and its quarters where it has a length."""
        quarter = f" {int(4 * done / total) * 25}%" if total else ""
        text = f"{part}: {what}{quarter}"
        if self._last.get(part) != text:
            self._last[part] = text
            self.line(text)

    def end(self, part: str) -> None:
        """Print that the part is ready."""
        self.line(f"{part}: ready")

    def line(self, text: str) -> None:
        """Print to stderr."""
        sys.stderr.write(f"lamina: {text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Do nothing: nothing moves."""
