"""Labels and MLflow's assessments are the same thing: whatever is said on one side is soon known on the other."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from logging_layer.assessments import NAMES, Assessment, can_be_shown, newest_of, shown
from logging_layer.codec import encode
from logging_layer.labels import Label, LabelBook, LabelSource
from logging_layer.mlflow_api import MlflowApi
from logging_layer.progress import load_progress, save_progress
from logging_layer.sink import Shipped, Sink, SinkRefused
from logging_layer.spans import trace_id_of

_OVERLAP_S = 2.0  # nodes' clocks differ, and a label is visible a moment after its time
_CURSOR = "mlflow_labels"
_MAX_SETTLED = 10_000
_SENT_PER_STEP = 20


class FeedbackTaker(Protocol):
    """Take a word about a call as `POST /admin/calls/{id}/feedback` does."""

    async def take(self, call: str, *, is_correct: bool, note: str, source: LabelSource) -> bool:
        """Keep it; False where the call is not known. Raises `SinkDown` where nobody takes it now."""
        ...


class Calls(Protocol):
    """Read call records back."""

    async def get(self, call_id: str) -> dict[str, Any] | None:
        """Return one record, None where it is not known."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class LabelExchange:
    """Bring MLflow's assessments to the labels, and labels to MLflow; the last word of a source holds on both sides.

    A step asks, by each name that feedback may have, for the newest page of assessed traces and one further page, so
    that all of them have been looked at after some steps, and writes at most 20 labels. Which labels MLflow has is kept
    in `folder`. A label on a call that sampling left out sends its trace first, through `sink`.
    """

    name = _CURSOR

    def __init__(
        self,
        folder: Path,
        api: MlflowApi,
        *,
        book: LabelBook,
        taker: FeedbackTaker,
        calls: Calls,
        sink: Sink,
        history_s: float = 30 * 86_400.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._api = api
        self._book = book
        self._taker = taker
        self._calls = calls
        self._sink = sink
        self._history_s = history_s
        self._clock = clock
        self._tokens: dict[str, str | None] = {}
        self._settled: OrderedDict[object, None] = OrderedDict()
        self._written_until = load_progress(folder, _CURSOR).get("labelled_at_ms", 0) / 1000.0
        self._num_taken = self._num_written = self._num_unknown = 0

    async def step(self) -> bool:
        """Look at both sides once; True where labels are left to be written."""
        await self._pull()
        return await self._push()

    def numbers(self) -> dict[str, float]:
        """Count the labels that came from MLflow, went there, and whose call nobody knows."""
        return {"taken": self._num_taken, "written": self._num_written, "unknown": self._num_unknown}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.aclose()
        await self._sink.aclose()
        await self._book.aclose()
        await self._calls.aclose()

    async def _pull(self) -> None:
        since_ms = int((self._clock() - self._history_s) * 1000)
        traces = [trace for name in NAMES for trace in await self._two_pages(name, since_ms=since_ms)]
        found = [one for trace in traces for one in newest_of(trace).values()]
        said = [one for one in found if (one.id, one.updated_at) not in self._settled]
        known = await self._book.of(list({one.call for one in said}))
        for one in said:
            if _is_news(one, known.get((one.call, one.source))):
                await self._take(one)
            self._settle((one.id, one.updated_at))

    async def _two_pages(self, name: str, *, since_ms: int) -> list[dict[str, Any]]:
        """Ask for the newest traces with feedback of this name, and for the page after the one that came last."""
        newest, after_newest = await self._api.assessed(name, since_ms=since_ms)
        token = self._tokens.get(name)
        if token is None:
            self._tokens[name] = after_newest
            return newest
        further, self._tokens[name] = await self._api.assessed(name, since_ms=since_ms, token=token)
        return newest + further

    async def _take(self, one: Assessment) -> None:
        if await self._taker.take(one.call, is_correct=one.is_correct, note=one.note, source=one.source):
            self._num_taken += 1
        else:
            self._num_unknown += 1

    async def _push(self) -> bool:
        labels = await self._book.since(self._written_until - _OVERLAP_S, limit=_MAX_SETTLED)
        waiting = [one for one in labels if can_be_shown(one) and _mark(one) not in self._settled]
        for label in waiting[:_SENT_PER_STEP]:
            await self._write(label)
            self._settle(_mark(label))
        done = waiting[:_SENT_PER_STEP] if len(waiting) > _SENT_PER_STEP else labels
        if done and done[-1].labelled_at > self._written_until:
            self._written_until = done[-1].labelled_at
            save_progress(self._folder, _CURSOR, {"labelled_at_ms": int(self._written_until * 1000)})
        return len(waiting) > _SENT_PER_STEP

    async def _write(self, label: Label) -> None:
        trace_id = f"tr-{trace_id_of(label.call).hex()}"
        info = await self._api.trace_info(trace_id)
        if info is None:
            if not await self._send_trace(label.call):
                self._num_unknown += 1
                return
            info = {}
        there = newest_of(info).get(label.source)
        if there is not None and (there.is_correct == label.is_correct or there.updated_at > label.labelled_at):
            return  # it came from there, or another word is on its way to us
        if there is not None and there.is_ours:
            await self._api.change_assessment(trace_id, there.id, shown(label))
        else:
            await self._api.add_assessment(trace_id, shown(label))
        self._num_written += 1

    async def _send_trace(self, call: str) -> bool:
        record = await self._calls.get(call)
        if record is None:
            return False
        try:
            await self._sink.send([Shipped(encode(record), weight=0.0)])
        except SinkRefused:
            return False
        return True

    def _settle(self, what: object) -> None:
        self._settled[what] = None
        while len(self._settled) > _MAX_SETTLED:
            self._settled.popitem(last=False)


def _is_news(one: Assessment, known: Label | None) -> bool:
    return known is None or (known.is_correct != one.is_correct and one.updated_at > known.labelled_at)


def _mark(label: Label) -> tuple[str, str, float]:
    return (label.call, label.source.value, label.labelled_at)
