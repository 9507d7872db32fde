"""What the server wrote, kept with the events that it became: a client of the same dialect gets it as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestration.core.events import Delta, Event, Finish


class Frames:
    """Attach frames to events, each byte once and in order.

    A frame without an event waits for the next one. Where a frame is several events, or waits with its events for
    more, the last of them has it in `raw`, the others have an empty `raw`, and `covers` counts all of them: nobody can
    take the frame for only some of them. With `is_on=False` no event has a `raw`.
    """

    def __init__(self, dialect: str, *, is_on: bool) -> None:
        self._dialect = dialect
        self._is_on = is_on
        self._held: list[bytes] = []
        self._num_open = 0
        self._is_checked = False

    def attach(self, deltas: list[Delta], raw: bytes) -> list[Delta]:
        """Give the events of one frame with it."""
        if not self._is_on:
            return deltas
        self._held.append(raw)
        if not deltas:
            return deltas
        *others, last = deltas
        whole, covers = b"".join(self._held), len(deltas) + self._num_open
        self._held, self._num_open = [], 0
        return [*map(self._part, others), replace(last, raw=whole, dialect=self._dialect, covers=covers)]

    def hold(self, deltas: list[Delta], raw: bytes) -> list[Delta]:
        """Give the events of a frame that says more than they do: the next event has it."""
        if not self._is_on:
            return deltas
        self._held.append(raw)
        self._num_open += len(deltas)
        return list(map(self._part, deltas))

    def end(self, finish: Finish, raw: bytes = b"") -> Finish:
        """Give the end with all that waits, and `raw`, the frame behind the content."""
        if not self._is_on:
            return finish
        whole = b"".join([*self._held, raw])
        return replace(finish, raw=whole, dialect=self._dialect, covers=self._num_open)

    def give_up(self) -> None:
        """Give no further event a frame: something was left out, and what follows does not stand without it."""
        self._is_on = False

    def require(self, answer: Mapping[str, Any], names: frozenset[str]) -> None:
        """Give up where an answer's head lacks what every answer of the format has: then it is written anew."""
        if not self._is_checked:
            self._is_checked = True
            self._is_on = self._is_on and names <= answer.keys()

    def whole(self, events: Sequence[Event], body: bytes) -> list[Event]:
        """Give the events of a whole answer: its body stands at the end."""
        if not self._is_on:
            return list(events)
        deltas = [self._part(event) for event in events if isinstance(event, Delta)]
        ends = [event for event in events if isinstance(event, Finish)]
        return [*deltas, *(replace(end, raw=body, dialect=self._dialect, covers=len(deltas)) for end in ends)]

    def _part(self, delta: Delta) -> Delta:
        return replace(delta, raw=b"", dialect=self._dialect)
