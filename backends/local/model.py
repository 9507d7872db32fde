"""A local model as every backend that asks it shares it: one link to the engine, one tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from backends.local.link import EngineLink
from backends.local.text import LocalText
from orchestration.core.errors import BackendUnavailable


class LocalModel:
    """Hold the link, and the text side, which is read from the model's file when it is first needed."""

    def __init__(self, link: EngineLink, *, path: Path, load: Callable[[Path], LocalText] = LocalText.load) -> None:
        self.link = link
        self._path = path
        self._load = load
        self._text: LocalText | None = None
        self._loading = asyncio.Lock()

    async def text(self) -> LocalText:
        """Return the text side, reading it in a thread the first time; raises `BackendUnavailable`."""
        if self._text is None:
            async with self._loading:
                if self._text is None:
                    try:
                        self._text = await asyncio.to_thread(self._load, self._path)
                    except (OSError, ValueError) as exc:
                        raise BackendUnavailable(f"the model's tokenizer cannot be read: {exc}") from exc
        return self._text

    async def aclose(self) -> None:
        """Close the link; calls in flight end with `BackendUnavailable`."""
        await self.link.aclose()
