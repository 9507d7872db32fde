"""What the server wrote, kept with the events that it became: a client of the same dialect gets it as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestration.core.events import Delta, Event, Finish, Part

_TEXTS = frozenset({Part.TEXT, Part.REASONING, Part.REFUSAL})


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
        whole = raw if len(self._held) == 1 else b"".join(self._held)
        covers = len(deltas) + self._num_open
        self._held, self._num_open = [], 0
        return [*map(self._part, others), last.with_raw(whole, self._dialect, covers=covers)]

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
        return finish.with_raw(whole, self._dialect, covers=self._num_open)

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
        return [*deltas, *(end.with_raw(body, self._dialect, covers=len(deltas)) for end in ends)]

    def _part(self, delta: Delta) -> Delta:
        return delta.with_raw(b"", self._dialect, covers=delta.covers)


def joined(deltas: list[Delta]) -> list[Delta]:
    """Join neighbouring pieces of one text that came together, and their frames: one event goes through all layers.

    What has tokens' probabilities, or shares its frame with other events, stays as it is.
    """
    if len(deltas) < 2:
        return deltas
    found: list[Delta] = []
    run: list[Delta] = []
    for delta in deltas:
        is_plain = (
            delta.data is delta.logprobs is None and delta.covers == 1 and delta.raw != b"" and delta.part in _TEXTS
        )
        if run and not (is_plain and _goes_on(run[0], delta)):
            found.append(_one_of(run))
            run = []
        if is_plain:
            run.append(delta)
        else:
            found.append(delta)
    return [*found, _one_of(run)] if run else found


def _goes_on(first: Delta, delta: Delta) -> bool:
    """Tell whether a plain piece goes on with the text of another one."""
    return (
        delta.part is first.part
        and delta.choice == first.choice
        and delta.dialect == first.dialect
        and (delta.raw is None) is (first.raw is None)
    )


def _one_of(run: list[Delta]) -> Delta:
    first = run[0]
    if len(run) == 1:
        return first
    raw = None if first.raw is None else b"".join([delta.raw or b"" for delta in run])
    return Delta(first.choice, first.part, "".join([delta.text for delta in run]), raw=raw, dialect=first.dialect)
