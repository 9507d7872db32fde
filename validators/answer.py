"""One answer on its way out: its texts, one per choice and part, and the order in which its events leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestration.core import Delta, Event, Finish, Part, Start
from orchestration.core.errors import Blocked
from validators.channel import Channel, Ready
from validators.check import Context, Outcome, Stage, Subject
from validators.edits import Edit, edited
from validators.pieces import Key, key_of, text_of
from validators.policy import Mode, Rule, Tally
from validators.shadow import normalise


class Answer:
    """Take an answer's events one by one and give back those that may go out. Raises `Blocked`, and `Reask` at the end.

    Where one rule holds, the whole answer is held until its `Finish`, at most `max_held_chars` of it. Otherwise
    each text is held back by its longest match, and let go when its choice goes on with another text. `Start` waits
    for the first content, so that an answer blocked before any has gone out is an error with a status.
    """

    def __init__(self, rules: Sequence[Rule], tally: Tally, *, max_held_chars: int) -> None:
        acting = [rule for rule in rules if not rule.only_tells]
        self._telling = [rule for rule in rules if rule.only_tells]
        self._content = [rule for rule in acting if rule.check.subject is Subject.CONTENT]
        self._shape = [rule for rule in acting if rule.check.subject is Subject.SHAPE]
        self._is_held = any(rule.mode is Mode.HOLD for rule in acting)
        self._tally = tally
        self._chars_left = max_held_chars
        self._channels: dict[Key, Channel] = {}
        self._current: dict[int, Channel] = {}
        self._told: dict[Key, list[str]] = {}
        self._order = 0
        self._head: list[Event] | None = [] if acting else None

    async def take(self, event: Event) -> list[Event]:
        """Take the next event."""
        match event:
            case Start():
                return self._after_head([event])
            case Delta():
                return self._after_head(await self._take_delta(event))
            case Finish():
                return self._after_head([*await self._end(event), event])

    def text(self) -> str:
        """Return the first choice's text as far as it is held."""
        channel = self._channels.get((0, Part.TEXT, 0))
        return channel.text() if channel is not None else ""

    async def _take_delta(self, event: Delta) -> list[Event]:
        key = key_of(event)
        if key is None:
            return [event]
        if self._telling:
            self._told.setdefault(key, []).append(text_of(event))
        if not self._content and not self._is_held:
            return [event]
        self._order += 1
        if self._is_held:
            self._bound(event)
            self._channel(key).add(self._order, event)
            return []
        return _in_order(await self._hold_back(key, event))

    async def _hold_back(self, key: Key, event: Delta) -> list[Ready]:
        before = self._current.get(event.choice)
        if before is not None and not text_of(event):
            before.add(self._order, event)  # it says nothing, so nothing ends here: it only keeps its place
            return await before.advance()
        channel = self._current[event.choice] = self._channel(key)
        ready = await before.settle() if before is not None and before is not channel else []
        channel.add(self._order, event)
        return [*ready, *await channel.advance()]

    def _channel(self, key: Key) -> Channel:
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(key, self._content, self._tally)
        return channel

    async def _end(self, finish: Finish) -> list[Event]:
        for rule in self._telling:
            await self._tell(rule, finish)
        ready: list[Ready] = []
        if self._is_held:
            for channel in self._channels.values():
                await channel.decide()
            for rule in self._shape:
                for choice in finish.reasons:
                    await self._shape_choice(rule, choice)
        for channel in self._channels.values():
            ready.extend(await channel.settle())
        return _in_order(ready)

    async def _shape_choice(self, rule: Rule, choice: int) -> None:
        channel = self._channels.get((choice, Part.TEXT, 0))
        said = (key for key, other in self._channels.items() if not other.is_empty)
        if self._tally.has_failed(rule) or self._has_other_answer(choice, said):
            return
        text = channel.text() if channel is not None else ""
        verdict = await self._tally.judge(rule, text, self._context(choice, Part.TEXT))
        if verdict.outcome is Outcome.REWRITE and channel is not None:
            channel.rewrite(edited(text, [Edit(span.start, span.end, span.replacement) for span in verdict.spans]))

    async def _tell(self, rule: Rule, finish: Finish) -> None:
        """Run a check that only tells on all that was said."""
        texts = {key: "".join(pieces) for key, pieces in self._told.items()}
        if rule.check.subject is Subject.SHAPE:
            said = [key for key, text in texts.items() if text]
            choices = [choice for choice in finish.reasons if not self._has_other_answer(choice, said)]
            texts = {(choice, Part.TEXT, 0): texts.get((choice, Part.TEXT, 0), "") for choice in choices}
        for (choice, part, _), text in texts.items():
            if self._tally.has_failed(rule):
                return
            is_content = rule.check.subject is Subject.CONTENT
            read = normalise(text, is_json=part is Part.TOOL_CALL).text if is_content else text
            await self._tally.judge(rule, read, self._context(choice, part))

    @staticmethod
    def _has_other_answer(choice: int, said: Iterable[Key]) -> bool:
        """Tell whether a choice calls a tool or refuses, and says nothing: then its text has no shape to check."""
        parts = {part for of, part, _ in said if of == choice}
        return Part.TEXT not in parts and bool(parts & {Part.TOOL_CALL, Part.REFUSAL})

    def _context(self, choice: int, part: Part) -> Context:
        return Context(stage=Stage.OUTPUT, where=f"choices[{choice}].{part}", request=self._tally.request)

    def _bound(self, event: Delta) -> None:
        self._chars_left -= len(text_of(event))
        if self._chars_left < 0:
            raise Blocked("The answer is longer than can be held for its checks.", code="answer_too_long_to_check")

    def _after_head(self, events: list[Event]) -> list[Event]:
        """Keep what has no content yet until something has."""
        if self._head is None:
            return events
        self._head.extend(events)
        if not any(map(_is_content, events)):
            return []
        head, self._head = self._head, None
        return head


def _is_content(event: Event) -> bool:
    match event:
        case Start():
            return False
        case Delta():
            return key_of(event) is None or text_of(event) != ""
        case Finish():
            return True


def _in_order(ready: Iterable[Ready]) -> list[Event]:
    return [one.event for one in sorted(ready, key=lambda one: one.order)]
