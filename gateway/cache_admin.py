"""`/admin/cache`: what the caches keep, entry by entry, and its end by id, tag, model or tenant."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from cache.catalogue import Catalogue, Listed, Sum, Wanted
from cache.entry import Entry
from cache.script import Row
from cache.semantic import IndexFault
from cache.store import StoreDown
from cache.worth import Bounds
from gateway.headers import MAX_TAG_CHARS, is_tag
from gateway.overview import AWAY
from orchestration.core import Delta
from orchestration.core.errors import InvalidRequest, NotFound, Unavailable

MAX_SHOWN_CHARS = 4000
_UNKNOWN: dict[int | str, dict[str, Any]] = {**AWAY, 404: {"description": "No such entry is kept."}}

Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=100_000)]
Name = Annotated[str | None, Query(min_length=1, max_length=256)]
Said = Annotated[str | None, Query(max_length=200)]

audit = logging.getLogger("lamina.audit")


async def _no_rows(_rows: Sequence[Row]) -> None:
    """Have no index."""


@dataclass(frozen=True, slots=True)
class CacheAdmin:
    """Answer for the caches. `index_stats` asks the cache owner and raises `IndexFault`; None where none runs.

    `shows_texts` lets an entry's question and answer be read: where the log keeps texts, the cache may show them.
    """

    catalogue: Catalogue
    bounds: Bounds = field(default_factory=Bounds)
    shows_texts: bool = False
    index_stats: Callable[[], Awaitable[Mapping[str, float]]] | None = None
    remove_rows: Callable[[Sequence[Row]], Awaitable[None]] = _no_rows

    async def overview(self) -> dict[str, Any]:
        """Count what is kept, and say how store and index are."""
        totals = await self.catalogue.totals()
        policy = await self.catalogue.eviction_policy()
        return {
            "totals": asdict(totals.whole),
            "is_whole": totals.is_whole,
            "by_kind": _named(totals.by_kind),
            "by_model": _named(totals.by_model),
            "by_tenant": _named(totals.by_tenant),
            "counts": await self.catalogue.counts(),
            "bounds": {"max_entries": self.bounds.max_entries, "max_bytes": self.bounds.max_bytes},
            "store": {"eviction_policy": policy, "warning": _warning(policy)},
            "index": await self._index(),
            "invalidations": await self.catalogue.invalidations(),
        }

    async def entry(self, id: str) -> dict[str, Any]:
        """Show one entry; raises `NotFound`."""
        entry = await self.catalogue.find(id)
        answer = None if entry is None else await self.catalogue.answer(entry)
        if entry is None or answer is None:
            raise _unknown(id)
        return {**_shown(entry), **(_texts(answer) if self.shows_texts else {})}

    async def remove(self, id: str, *, note: Mapping[str, Any]) -> int:
        """Take one answer out, of both caches; returns how many entries kept it. Raises `NotFound`."""
        taken = await self.catalogue.remove(id, note=note)
        if taken is None:
            raise _unknown(id)
        await self.remove_rows(taken.rows)
        return taken.count

    async def invalidate(self, wanted: Wanted, *, note: Mapping[str, Any]) -> int:
        """Take out all that is wanted; returns how many entries it was."""
        taken = await self.catalogue.invalidate(wanted, note=note)
        await self.remove_rows(taken.rows)
        return taken.count

    async def _index(self) -> dict[str, Any]:
        if self.index_stats is None:
            return {"state": "off"}
        try:
            return {"state": "ready", **await self.index_stats()}
        except IndexFault as fault:
            return {"state": fault.code}


def cache_routes(admin: CacheAdmin) -> APIRouter:
    """Return the routes; the edge has looked at the key before, and each request leaves an audit line."""
    audit.setLevel(logging.INFO)  # a worker's log begins at warnings
    router = APIRouter(prefix="/admin/cache", tags=["admin"])

    @router.get("", summary="What the caches keep: by kind, model and tenant; store and index", responses=AWAY)
    async def get_cache(request: Request) -> Response:
        _audit(request, "cache.read", {})
        return _reply(await _asked(admin.overview()))

    @router.get("/entries", summary="Kept entries, page by page, the longest-lived first", responses=AWAY)
    async def list_entries(
        request: Request,
        tag: Name = None,
        model: Name = None,
        tenant: Name = None,
        limit: Limit = 50,
        offset: Offset = 0,
    ) -> Response:
        wanted = _wanted(tag=tag, model=model, tenant=tenant)
        _audit(request, "cache.list", wanted.fields())
        found = await _asked(admin.catalogue.page(wanted, limit=limit, offset=offset))
        return _reply({"entries": [_shown(entry) for entry in found], "offset": offset})

    @router.get("/entries/{entry_id}", summary="One entry, by the id in x-lamina-entry", responses=_UNKNOWN)
    async def get_entry(request: Request, entry_id: str) -> Response:
        _audit(request, "cache.show", {"entry": entry_id[:64]})
        return _reply(await _asked(admin.entry(entry_id)))

    @router.delete("/entries/{entry_id}", summary="Forget an answer, at every worker and node", responses=_UNKNOWN)
    async def delete_entry(request: Request, entry_id: str, by: Said = None, reason: Said = None) -> Response:
        note = _audit(request, "cache.delete", {"entry": entry_id[:64]}, by=by, reason=reason)
        return _reply({"deleted": await _asked(admin.remove(entry_id, note=note))})

    @router.delete("", summary="Forget all answers that a tag, a model and a tenant have in common", responses=AWAY)
    async def delete_entries(
        request: Request,
        tag: Name = None,
        model: Name = None,
        tenant: Name = None,
        all: bool = False,
        by: Said = None,
        reason: Said = None,
    ) -> Response:
        wanted = _wanted(tag=tag, model=model, tenant=tenant)
        if not wanted.fields() and not all:
            raise InvalidRequest("Name a 'tag', 'model' or 'tenant'; 'all=true' forgets everything.", param="tag")
        note = _audit(request, "cache.invalidate", wanted.fields(), by=by, reason=reason)
        return _reply({"deleted": await _asked(admin.invalidate(wanted, note=note))})

    return router


def _wanted(*, tag: str | None, model: str | None, tenant: str | None) -> Wanted:
    if tag is not None and not is_tag(tag):
        raise InvalidRequest(f"'tag' is 1 to {MAX_TAG_CHARS} visible ASCII characters without a comma.", param="tag")
    return Wanted(tag=tag, model=model, tenant=tenant)


def _audit(
    request: Request, action: str, what: Mapping[str, Any], *, by: str | None = None, reason: str | None = None
) -> dict[str, Any]:
    """Write who does what, and when, into the worker's log; returns it, for what is kept with an invalidation."""
    client = request.client.host if request.client is not None else "local"
    note = {"by": by or client, "from": client, "reason": reason, "at": round(time.time(), 3)}
    audit.info("%s %s", action, json.dumps({**what, **note}))
    return note


def _shown(entry: Listed) -> dict[str, Any]:
    shown = asdict(entry)
    shown["entry"] = shown.pop("id")
    del shown["key"], shown["partition"], shown["twin"]
    return shown


def _texts(entry: Entry) -> dict[str, Any]:
    answer = "".join(event.text for event in entry.events if isinstance(event, Delta))
    question = entry.question
    return {"question": question and question[:MAX_SHOWN_CHARS], "answer": answer[:MAX_SHOWN_CHARS]}


def _named(sums: Mapping[str, Sum]) -> dict[str, Any]:
    return {name: asdict(one) for name, one in sorted(sums.items(), key=lambda pair: -pair[1].entries)}


def _warning(policy: str | None) -> str | None:
    if policy is not None and policy.startswith("allkeys"):
        return f"{policy} may drop the lists by which entries are invalidated: use volatile-lru or noeviction"
    return None


def _unknown(id: str) -> NotFound:
    return NotFound(f"No entry '{id[:64]}' is kept.", param="entry_id", code="entry_not_found")


async def _asked(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except StoreDown as exc:
        raise Unavailable(f"The cache cannot be asked right now: {exc}.") from exc


def _reply(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
