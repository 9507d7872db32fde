"""One request straight to the engine over its link: no gateway, no text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from backends.local.generation import EngineRefused, Submission
from backends.local.link import EngineLink
from lab.bench.engine.answer import Answer
from lab.bench.process_tree import tree
from orchestration.core.errors import LaminaError


class LinkClient:
    """Ask the engine at `address` for answers of exactly `max_tokens` tokens; one connection for all requests."""

    def __init__(self, address: str, *, max_tokens: int, timeout_s: float) -> None:
        self._link = EngineLink(address)
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s

    async def vocab_size(self) -> int:
        """Return how many token ids the model has."""
        return (await self._link.info()).vocab_size

    async def ask(self, prompt: Sequence[int], *, max_tokens: int | None = None) -> Answer:
        """Send one request and take its tokens to the end; what breaks it off is in the answer, nothing is raised."""
        begun_s = time.monotonic()
        times: list[float] = []
        num_tokens = cached_tokens = 0
        error: str | None = None
        submission = Submission(
            prompt, max_tokens or self._max_tokens, temperature=0.0, ignore_eos=True, salt=f"{begun_s}"
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                generation = await self._link.submit([submission])
                try:
                    finish = None
                    while finish is None:
                        for step in await generation.take():
                            times.append(time.monotonic())
                            num_tokens += len(step.token_ids)
                            cached_tokens, finish = step.cached_tokens, step.finish
                finally:
                    generation.close()
        except TimeoutError:
            error = f"no end within {self._timeout_s:g} s"
        except (LaminaError, EngineRefused) as exc:
            error = f"{type(exc).__name__}: {exc}"
        return Answer(
            begun_s=begun_s,
            ended_s=time.monotonic(),
            token_times=times,
            output_tokens=num_tokens,
            prompt_tokens=len(prompt),
            cached_tokens=cached_tokens,
            error=error,
        )

    async def aclose(self) -> None:
        """Close the connection."""
        await self._link.aclose()


def find_engine(root: int) -> tuple[int, str] | None:
    """Return the engine's process below a `lamina serve`, and the address at which it listens."""
    for pid in tree(root):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "backends.engine" in words and "--listen" in words:
            return pid, words[words.index("--listen") + 1]
    return None
