"""The values that cross the engine's borders: what is asked, what is answered, what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_LOGPROBS = 100


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class RefusalCode(StrEnum):
    """Why a request was not taken."""

    NEVER_FITS = "never_fits"
    QUEUE_FULL = "queue_full"
    BAD_PARAMS = "bad_params"
    ENGINE_ERROR = "engine_error"


class Refused(Exception):
    """A request cannot be taken; the message says which value was wrong and what would be right."""

    def __init__(self, code: RefusalCode, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a request ends.

    `top_k` 0 is off. Without a seed the engine draws one at submission. `logprobs` is the number of alternatives
    reported beside each token, `None` for no logprobs at all.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None

    def check(self) -> None:
        """Raise `Refused` with the first field that is out of range."""
        rules = (
            (self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1"),
            (math.isfinite(self.temperature) and self.temperature >= 0, "temperature", self.temperature, "0 or more"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1"),
            (self.top_k >= 0, "top_k", self.top_k, "0 (off) or more"),
            (
                self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
                "logprobs",
                self.logprobs,
                f"0 to {MAX_LOGPROBS}",
            ),
        )
        for holds, field, value, wanted in rules:
            if not holds:
                raise Refused(RefusalCode.BAD_PARAMS, f"{field} is {value}; it must be {wanted}")


@dataclass(frozen=True, slots=True)
class Submission:
    """One request as it arrives; prefixes are shared only among equal `salt`s, higher `priority` goes first."""

    prompt: tuple[int, ...]
    params: SamplingParams
    salt: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token under the model, and of the most likely ones (best first, lowest id first)."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step drew for one request; `token` is `None` where its logits were not numbers."""

    key: int
    token: int | None
    logprobs: TokenLogprobs | None = None


Events = Mapping[str, float | Sequence[float]]
"""Milliseconds since a request was queued, by what happened to it: `queued`, `admitted`, `first_token`, `finished`,
and `preempted` with one for each time."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave to one request; with its `events` so far where one of them is new."""

    key: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish: FinishReason | None
    cached_prompt_tokens: int
    events: Events | None = None
