"""`POST /admin/calls/{id}/feedback`: a person says whether an answer was right; a wrong one is served no more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from cache.quarantine import keys_of, maker_of, quarantine
from cache.store import Store, StoreDown
from gateway.parts import CallReader
from gateway.replay.cache_decision import last_user_text
from logging_layer.labels import Label, LabelBook, LabelsDown, LabelSource
from orchestration.core.errors import InvalidRequest, NotFound, Unavailable

_MAX_NOTE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Feedback:
    """Take a person's or a judge's word about recorded calls."""

    calls: CallReader
    labels: LabelBook
    store: Store
    told: Callable[[int], None] = lambda _number: None
    """Hears how many stored answers were taken out of service."""

    async def take(
        self, call_id: str, *, is_correct: bool, note: str | None, source: LabelSource = LabelSource.HUMAN
    ) -> dict[str, Any]:
        """Keep the label, and quarantine what a wrong answer came from before it is kept: nobody gets it meanwhile.

        Raises `NotFound` for a call that nobody knows, `Unavailable` where store or database do not answer.
        """
        record = await self.calls.get(call_id)
        if record is None:
            raise NotFound(f"No call '{call_id[:64]}' is known.", param="call_id", code="call_not_found")
        keys = () if is_correct else await self._keys_of(record)
        label = _label(record, is_correct=is_correct, note=note, source=source)
        try:
            await quarantine(self.store, keys)
            self.told(len(keys))
            await self.labels.add([label])
        except (StoreDown, LabelsDown) as exc:
            raise Unavailable(f"The feedback could not be kept: {exc}.") from exc
        return {"label": asdict(label), "num_quarantined": len(keys)}

    async def _keys_of(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """Return where the answer is kept; that of an exact hit also where the call that made it left it."""
        made_by = maker_of(record)
        maker = await self.calls.get(made_by) if made_by is not None else None
        records = [record] if maker is None else [record, maker]
        keys = [key for one in records for key in keys_of(one, question=last_user_text(one))]
        return tuple(dict.fromkeys(keys))

    async def take_from_process(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        """Take what another process of ours heard elsewhere, over the worker's control socket."""
        source = LabelSource(params["source"])
        await self.take(params["call"], is_correct=params["is_correct"], note=params["note"], source=source)
        return None, b""


def feedback_routes(feedback: Feedback) -> APIRouter:
    """Return the route; the edge has looked at the key before."""
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.post(
        "/calls/{call_id}/feedback",
        summary="Say whether a call's answer was right; what a wrong one came from is served no more",
        responses={404: {"description": "No such call is known."}},
    )
    async def post_feedback(call_id: str, request: Request) -> Response:
        is_correct, note = _read(await request.body())
        answer = await feedback.take(call_id, is_correct=is_correct, note=note)
        return Response(orjson.dumps(answer), media_type="application/json")

    return router


def _label(record: Mapping[str, Any], *, is_correct: bool, note: str | None, source: LabelSource) -> Label:
    cache = record["cache"]
    served: Mapping[str, Any] = next((one for one in cache["candidates"] if one["entry"] == cache["entry"]), {})
    inputs = served.get("inputs")
    return Label(
        call=record["id"],
        source=source,
        is_correct=is_correct,
        labelled_at=time.time(),
        entry=cache["entry"],
        similarity=cache["similarity"],
        inputs=None if inputs is None else json.dumps(inputs),
        note=note,
    )


def _read(body: bytes) -> tuple[bool, str | None]:
    """Check the body; raises `InvalidRequest` naming the field."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The body is no JSON: {exc}.") from exc
    if not isinstance(fields, dict) or not isinstance(fields.get("correct"), bool):
        raise InvalidRequest(
            """'correct' is true or false, as in {"correct": false, "note": "wrong city"}.""", param="correct"
        )
    note = fields.get("note")
    if note is not None and (not isinstance(note, str) or len(note) > _MAX_NOTE_CHARS):
        raise InvalidRequest(f"'note' is a text of at most {_MAX_NOTE_CHARS} characters.", param="note")
    return fields["correct"], note
