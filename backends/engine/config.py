"""The engine's settings after they were made to agree with one another and with the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the scheduler and the pool need to know; `create` makes one that holds together.

    `num_pages` pages of `page_size` tokens; a request may hold up to `max_len` tokens; a step runs at most
    `max_batched_tokens` tokens of at most `max_num_seqs` requests; at most `max_waiting` requests wait.
    """

    vocab_size: int
    max_len: int
    eos_ids: frozenset[int]
    num_pages: int
    page_size: int = 16
    max_num_seqs: int = 64
    max_batched_tokens: int = 128
    max_waiting: int = 1024
    admission: str = "future_peak"
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for field in ("vocab_size", "max_len", "num_pages", "page_size", "max_num_seqs", "max_batched_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting is {self.max_waiting}; it must be 0 or more")
        if self.max_batched_tokens < self.max_num_seqs:
            # A step must have room for one token of every running request, or some would starve.
            object.__setattr__(self, "max_batched_tokens", self.max_num_seqs)

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


Progress = Callable[[str, int, int], None]
"""Told what is being loaded, how many of it are done, and how many there are."""
