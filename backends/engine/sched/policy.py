"""Who goes first, and who gives way: pure orders over requests."""

from __future__ import annotations

from collections.abc import Iterable

from backends.engine.sched.request import Request

Rank = tuple[int, int]


def rank(request: Request) -> Rank:
    """Return the place in every order: higher priority first, then the older."""
    return (-request.submission.priority, request.key)


def victim(running: Iterable[Request]) -> Request:
    """Return who gives its pages up: the youngest of the lowest priority, so that the oldest always finishes."""
    return max(running, key=rank)
