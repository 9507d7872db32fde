"""Who goes first, and who gives way: pure orders over requests."""

from __future__ import annotations

from collections.abc import Iterable

from backends.engine.sched.request import Request

Rank = tuple[float, int]


def rank(request: Request) -> Rank:
    """Return the place in every order: by `place_s`, then the older.

    `place_s` is the time of arrival, moved back by so many seconds for every level of priority. So a request of a
    higher priority goes first, and one of a lower that has waited long enough before it: ageing that needs no clock.
    """
    return (request.place_s, request.key)


def victim(running: Iterable[Request]) -> Request:
    """Return who gives its pages up: the last in rank, so that the first always finishes."""
    return max(running, key=rank)


def yields_to(running: Request, waiting: Request, *, within_tenant: bool) -> bool:
    """Tell whether a running request gives way to a waiting one: of a lower priority, and behind it in rank.

    `within_tenant` keeps a tenant from moving others' requests by priorities of its own choice.
    """
    if within_tenant and running.submission.salt != waiting.submission.salt:
        return False
    return running.submission.priority < waiting.submission.priority and rank(running) > rank(waiting)
