"""The gateway's side of the guardrails worker: a check of guardrails-ai is a call over a socket, with a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestration.core import Request
from orchestration.core.rpc import RpcClient, RpcError
from validators.check import PASSED, Context, Cost, Outcome, Span, Stage, Verdict
from validators.guardrails_table import borrowed, checked_options

HEALTH_TIMEOUT_S = 2.0
MAX_IN_FLIGHT = 256


class GuardrailsClient:
    """Ask the worker behind a Unix socket. A worker that is down, busy or slow gives `Outcome.ERROR`, in time."""

    def __init__(self, path: Path) -> None:
        self._rpc = RpcClient(path, max_in_flight=MAX_IN_FLIGHT)

    async def check(self, name: str, options: Mapping[str, Any], text: str, *, timeout_s: float) -> Verdict:
        """Have one validator look at a text."""
        params = {"check": name, "options": dict(options), "timeout_s": timeout_s}
        try:
            found, _ = await self._rpc.call(
                "check", params, payload=text.encode("utf-8", "replace"), timeout_s=timeout_s
            )
        except RpcError as exc:
            return Verdict(Outcome.ERROR, reason=f"{exc.code}: {exc}")
        if found["outcome"] == Outcome.PASS:
            return PASSED
        spans = tuple(Span(start, end, replacement) for start, end, replacement in found["spans"])
        return Verdict(Outcome(found["outcome"]), spans, found["reason"])

    async def check_health(self) -> str | None:
        """Say what is wrong with the worker, in a phrase, or None when it answers."""
        try:
            await self._rpc.call("health", timeout_s=HEALTH_TIMEOUT_S)
        except RpcError as exc:
            return f"{exc.code}: {exc}"
        return None

    async def aclose(self) -> None:
        """Close the connection; checks in flight end with `Outcome.ERROR`."""
        await self._rpc.aclose()


class GuardrailsCheck:
    """A guardrails-ai validator as a check. Its matches have no bound, so it looks at whole answers only."""

    cost = Cost.WORKER
    stages = frozenset(Stage)
    longest_match = None

    def __init__(
        self, name: str, options: Mapping[str, Any], client: GuardrailsClient, *, timeout_s: float = 2.0
    ) -> None:
        known = borrowed(name)
        self.name = name
        self.version = known.code_version()
        self.subject = known.subject
        self.rewrites = known.rewrites
        self._options = checked_options(name, options)
        self._client = client
        self._timeout_s = timeout_s

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask the worker; an unanswered question is `Outcome.ERROR`."""
        return await self._client.check(self.name, self._options, text, timeout_s=self._timeout_s)
