"""Asking the model once more, with what was wrong with its answer."""

from __future__ import annotations

from dataclasses import replace

from orchestration.core import Call, Finish, Kind, Usage

MAX_REASKS = 3


class Reask(Exception):
    """A rule wants the model to be asked again, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Spending:
    """What the refused answers of a call cost, to be added to the one that goes out."""

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._cost_usd: float | None = None

    def add(self, call: Call, finish: Finish) -> None:
        """Take over what an answer cost that does not go out."""
        if finish.usage is not None:
            self._usage = finish.usage if self._usage is None else _sum(self._usage, finish.usage)
        if call.notes.cost_usd is not None:
            self._cost_usd = call.notes.cost_usd + (self._cost_usd or 0.0)
            call.notes.cost_usd = None

    def settle(self, call: Call) -> None:
        """Put the cost of all answers into the call's notes; later calls change nothing."""
        if self._cost_usd is not None:
            call.notes.cost_usd = self._cost_usd + (call.notes.cost_usd or 0.0)
            self._cost_usd = None

    def with_usage(self, finish: Finish) -> Finish:
        """Return the end of the answer that goes out, with the usage of all; its raw frames would say another."""
        if self._usage is None:
            return finish
        usage = self._usage if finish.usage is None else _sum(self._usage, finish.usage)
        return replace(finish, usage=usage, raw=None, covers=0)


def can_ask_again(call: Call) -> bool:
    """Tell whether there is a conversation that can go on."""
    return call.kind is Kind.CHAT


def asked_again(call: Call, *, answer: str, reason: str) -> Call:
    """Return the call with the refused answer and the reason at the end of its conversation."""
    refused = [{"role": "assistant", "content": answer}] if answer else []
    order = f"This answer was refused: {reason}. Answer again so that it is not; do not mention this message."
    messages = [*call.request.messages, *refused, {"role": "user", "content": order}]
    return replace(call, request=call.request.with_fields(messages=messages))


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
    )
