"""One text of a streamed answer: what is held back of it, where its checks stand, and what may go out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestration.core import Delta, Part
from validators.check import Context, Outcome, Verdict
from validators.edits import Edit, edited, merged, on_original
from validators.pieces import Key, text_of, with_text
from validators.policy import Rule, Tally
from validators.shadow import Shadow, normalise

CONTEXT = 1
"""How many characters to either side of a match a check may look at."""

STRIDES = 8
"""A check looks again once this part of its longest match has come in anew: at each event would cost far more."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An event that may go out, and its place in the order in which the events came in."""

    order: int
    event: Delta


@dataclass(frozen=True, slots=True)
class _Piece:
    order: int
    event: Delta
    length: int


@dataclass(slots=True)
class _Scan:
    """How far one check has decided: nothing that begins before `position` is open; in shadow characters."""

    rule: Rule
    rank: int
    position: int = 0
    match_end: int = -1


class Channel:
    """Hold a text back until every check has decided on it, then let its events go, whole ones only.

    A character is decided when no match that covers it can begin, end or change any more, however the text goes
    on. So the same edits come out for every way of cutting the text into events, and no character of a match goes
    out before the match is known. Held are at most the longest match, one character of context, the last segment
    and the event that these begin in.
    """

    def __init__(self, key: Key, rules: Sequence[Rule], tally: Tally) -> None:
        self.key = key
        self._is_json = key[1] is Part.TOOL_CALL
        self._tally = tally
        self._scans = [_Scan(rule, rank) for rank, rule in enumerate(rules)]
        self._pieces: deque[_Piece] = deque()
        self._edits: list[Edit] = []
        self._buffer = ""  # what is held, after some of what went out: the checks look back at it
        self._released = 0  # where in the buffer the held text begins
        self._is_settled = True
        self.is_empty = True

    def add(self, order: int, event: Delta) -> None:
        """Take the next event of this text."""
        text = text_of(event)
        self._pieces.append(_Piece(order, event, len(text)))
        if text:
            self._buffer += text
            self._is_settled = self.is_empty = False

    async def advance(self) -> list[Ready]:
        """Return the events that may go out now. Raises `Blocked`."""
        shadow = normalise(self._buffer, is_json=self._is_json)
        for scan in self._scans:
            # The last place whose longest match and next character are all here to stay, and one more.
            longest = scan.rule.check.longest_match or 0
            limit = shadow.stable - longest - CONTEXT + 1
            if limit - scan.position > longest // STRIDES:
                await self._scan(scan, shadow, limit=limit, end=limit)
        index = min((scan.position for scan in self._scans), default=shadow.stable)
        ready = self._release(shadow.offset(index))
        self._trim(shadow, index)
        return ready

    async def settle(self) -> list[Ready]:
        """Decide on all of the text as if it ended here, and return every event that is left.

        If the text goes on after all, a match that began before here and ends after it loses what is not out yet.
        """
        if not self._is_settled:
            await self.decide()
        return self._release(len(self._buffer))

    async def decide(self) -> None:
        """Let every check look at all of the text, releasing nothing. Raises `Blocked`."""
        if self.is_empty:
            return
        shadow = normalise(self._buffer, is_json=self._is_json)
        for scan in self._scans:
            await self._scan(scan, shadow, limit=len(shadow.text) + 1, end=len(shadow.text))
            # Should the text go on, what lies within a match's length of here is looked at again.
            again = shadow.stable - (scan.rule.check.longest_match or 0)
            scan.position = max(0, again, min(scan.match_end, shadow.stable))
        self._is_settled = True

    def text(self) -> str:
        """Return the held text with the edits so far."""
        return edited(self._buffer, self._edits, start=self._released)

    def rewrite(self, text: str) -> None:
        """Put another text in place of everything held."""
        self._edits = [Edit(self._released, len(self._buffer), text)]

    async def _scan(self, scan: _Scan, shadow: Shadow, *, limit: int, end: int) -> None:
        """Take the matches that begin before `limit`; everything before `end` is decided then."""
        if self._tally.has_failed(scan.rule):
            scan.position = end
            return
        choice, part, _ = self.key
        context = Context(
            stage=self._tally.stage,
            where=f"choices[{choice}].{part}",
            start=scan.position,
            follows_match=scan.match_end == scan.position,
            request=self._tally.request,
        )
        verdict = await self._tally.judge(scan.rule, shadow.text, context, limit=limit)
        self._take(verdict, shadow, rank=scan.rank)
        for span in verdict.spans:
            scan.position = scan.match_end = span.end
        scan.position = max(scan.position, end)

    def _take(self, verdict: Verdict, shadow: Shadow, *, rank: int) -> None:
        if verdict.outcome is not Outcome.REWRITE:
            return
        edits = [self._as_written(edit) for edit in on_original(verdict.spans, shadow, rank=rank)]
        fresh = [replace(edit, start=max(edit.start, self._released)) for edit in edits if edit.end > self._released]
        self._edits = merged([*self._edits, *fresh])

    def _as_written(self, edit: Edit) -> Edit:
        if not self._is_json:
            return edit
        return replace(edit, replacement=json.dumps(edit.replacement)[1:-1])

    def _release(self, safe: int) -> list[Ready]:
        ready: list[Ready] = []
        while self._pieces and self._released + self._pieces[0].length <= safe:
            piece = self._pieces.popleft()
            event = self._cut(piece)
            self._released += piece.length
            if event is not None:
                ready.append(Ready(piece.order, event))
        self._edits = [edit for edit in self._edits if edit.end > self._released]
        return ready

    def _cut(self, piece: _Piece) -> Delta | None:
        start, end = self._released, self._released + piece.length
        if start == end or not any(edit.start < end and edit.end > start for edit in self._edits):
            return piece.event
        return with_text(piece.event, edited(self._buffer, self._edits, start=start, end=end))

    def _trim(self, shadow: Shadow, index: int) -> None:
        """Forget what no check looks back at."""
        head = shadow.segment(max(0, index - CONTEXT))
        cut = shadow.offset(head)
        if not 0 < cut <= self._released:
            return
        self._buffer = self._buffer[cut:]
        self._released -= cut
        self._edits = [replace(edit, start=edit.start - cut, end=edit.end - cut) for edit in self._edits]
        for scan in self._scans:
            scan.position -= head
            scan.match_end -= head
