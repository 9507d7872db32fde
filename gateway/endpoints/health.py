"""`GET /health/live` and `GET /health/ready`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.exchange import Exchange
from gateway.parts import HealthCheck


class Health:
    """Ask every part; one that does not answer within `timeout_s`, or fails, is not ready."""

    def __init__(
        self, checks: Mapping[str, HealthCheck], *, is_draining: Callable[[], bool], timeout_s: float = 2.0
    ) -> None:
        self._checks = checks
        self._is_draining = is_draining
        self._timeout_s = timeout_s

    async def live(self, exchange: Exchange) -> None:
        """Answer: that is all there is to living."""
        await exchange.reply(200, b'{"status":"live"}')

    async def ready(self, exchange: Exchange) -> None:
        """Answer 200 only where every part answers and calls are still taken; the body says which part is wrong."""
        answer = await self.ask()
        status = 200 if answer["status"] == "ready" else 503
        await exchange.reply(status, orjson.dumps(answer), headers=[(b"cache-control", b"no-store")])

    async def ask(self) -> dict[str, Any]:
        """Ask every part at once; gives `status` (ready, not ready, draining) and what each part says."""
        faults = dict(zip(self._checks, await asyncio.gather(*map(self._ask, self._checks.values())), strict=True))
        is_ready = not any(faults.values())
        status = "draining" if self._is_draining() else "ready" if is_ready else "not ready"
        return {"status": status, "parts": {name: fault or "ok" for name, fault in faults.items()}}

    async def _ask(self, check: HealthCheck) -> str | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await check()
        except TimeoutError:
            return f"no answer within {self._timeout_s:g} s"
        except Exception as exc:  # whatever a part's check raises is what is wrong with the part
            return f"{type(exc).__name__}: {exc}"
