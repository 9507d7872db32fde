"""The start as moving lines on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


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
