"""What a person sees of the start: moving lines on a terminal, plain ones elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


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
    return TerminalDisplay() if sys.stderr.isatty() else PlainDisplay()


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


class TerminalDisplay:
    """Draw one moving line for each part that is still starting."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[part]:<24}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def begin(self, part: str) -> None:
        """Add the part's line."""
        self._tasks[part] = self._progress.add_task("starting", total=None, part=part)

    def progress(self, part: str, what: str, done: float, total: float | None) -> None:
        """Move the part's bar."""
        if part in self._tasks:
            self._progress.update(self._tasks[part], description=what, completed=done, total=total)

    def end(self, part: str) -> None:
        """Take the part's line away."""
        task = self._tasks.pop(part, None)
        if task is not None:
            self._progress.remove_task(task)

    def line(self, text: str) -> None:
        """Print above the moving lines."""
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take every moving line away."""
        self._progress.stop()
