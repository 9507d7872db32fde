"""The engine's settings after they were made to agree with one another and with the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the scheduler and the pool need to know; `create` makes one that holds together.

    `num_pages` pages of `page_size` tokens; a request may hold up to `max_len` tokens; at most `max_num_seqs` requests
    hold pages; a step runs at most `max_batched_tokens` tokens of at most `max_batch_size` of them, in turn (`None`: of
    all); at most `max_waiting` requests wait, with at most `max_waiting_tokens` tokens in all (`None`: any number; one
    request may always wait). `num_swap_pages` pages outside the pool keep what requests that give way have computed;
    without one to spare it is computed again.

    While answers are being decoded, prompts take at most `prefill_share` of a step's tokens together; while more than
    one prompt could be computed, each takes at most `chunk_share`. A level of priority is worth `priority_age_s`
    seconds of waiting. A waiting request is overtaken at most `max_overtakes` times; 0 is strictly in order.
    """

    vocab_size: int
    max_len: int
    eos_ids: frozenset[int]
    num_pages: int
    page_size: int = 16
    max_num_seqs: int = 64
    max_batch_size: int | None = None
    max_batched_tokens: int = 128
    max_waiting: int = 1024
    max_waiting_tokens: int | None = None
    policy: str = "fcfs"
    admission: str = "future_peak"
    prefill_share: float = 0.75
    chunk_share: float = 0.75
    priority_age_s: float = 10.0
    max_overtakes: int = 32
    prefix_cache: bool = True
    num_swap_pages: int = 0

    def __post_init__(self) -> None:
        for field in ("vocab_size", "max_len", "num_pages", "page_size", "max_num_seqs", "max_batched_tokens"):
            self._require(field, getattr(self, field) >= 1, "at least 1")
        for field in ("max_waiting", "max_overtakes", "num_swap_pages"):
            self._require(field, getattr(self, field) >= 0, "0 or more")
        for field in ("prefill_share", "chunk_share"):
            self._require(field, 0 < getattr(self, field) <= 1, "above 0 and at most 1")
        self._require("priority_age_s", 0 <= self.priority_age_s < math.inf, "0 or more seconds")
        self._require(
            "max_waiting_tokens", self.max_waiting_tokens is None or self.max_waiting_tokens >= 1, "1 or more"
        )
        self._require("max_batch_size", self.max_batch_size is None or self.max_batch_size >= 1, "1 or more")
        if self.max_batched_tokens < self.num_rows:
            # A step must have room for one token of every row, or some would starve.
            object.__setattr__(self, "max_batched_tokens", self.num_rows)

    def _require(self, field: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise ValueError(f"{field} is {getattr(self, field)}; it must be {wanted}")

    @property
    def num_rows(self) -> int:
        """Return how many requests a step computes at most."""
        return min(self.max_batch_size or self.max_num_seqs, self.max_num_seqs)

    @property
    def num_slots(self) -> int:
        """Return how many tokens the pool holds in all."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)


def size_pool(*, memory_bytes: int, page_bytes: int, page_size: int, max_len: int, max_num_seqs: int) -> int:
    """Return the number of pages for a memory budget: at least one, never more than could ever be used."""
    useful = max_num_seqs * -(-max_len // page_size)
    return max(1, min(memory_bytes // page_bytes, useful))


def doubts(config: EngineConfig, *, pool_bytes: int, free_bytes: int) -> list[str]:
    """Say what whoever chose the pool's size should know, a sentence each: nothing where it suits."""
    found = []
    if config.num_slots < config.max_len:
        found.append(
            f"KV memory for {config.num_slots} tokens is less than one context of {config.max_len}: longer calls are "
            "refused; a larger engine.kv_memory_mb takes them"
        )
    if pool_bytes > free_bytes:
        found.append(
            f"KV memory of {pool_bytes >> 20} MiB is more than the {free_bytes >> 20} MiB that are free: the system "
            "may end the engine when it fills; a smaller engine.kv_memory_mb is safe"
        )
    return found


Progress = Callable[[str, int, int], None]
"""Told what is being loaded, how many of it are done, and how many there are."""
