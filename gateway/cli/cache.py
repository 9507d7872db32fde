"""`lamina cache`: what a running gateway's caches keep, and its end, over the admin side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gateway.cli.address import key_header
from gateway.refusals import Refused

_TIMEOUT_S = 60.0
_WIDEST = 10_000
_COLUMNS = ("entry", "kind", "model", "tenant", "tags", "hits", "bytes", "ends")


class CacheRefused(Refused):
    """The gateway did not answer, or refused."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where it listens, and its master key where it has one."""

    url: str
    key: str | None

    def ask(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Ask the admin side; raises `CacheRefused` with what it said."""
        headers = key_header(self.key)
        given = {name: value for name, value in (params or {}).items() if value is not None}
        url = f"{self.url}/admin/cache{path}"
        try:
            reply = httpx.request(method, url, params=given, headers=headers, timeout=_TIMEOUT_S)
        except httpx.HTTPError as exc:
            raise CacheRefused(f"no answer from {self.url} ({exc}): is 'lamina serve' running there?") from exc
        if reply.status_code != 200:
            raise CacheRefused(_message(reply))
        return reply.json()


def stats(gateway: Gateway) -> None:
    """Print what is kept by kind, model and tenant, and how store and index are."""
    view = gateway.ask("GET", "")
    shown = Table("what", *(Column(name, justify="right") for name in ("entries", "bytes", "hits", "saved USD")))
    shown.add_row("all", *_cells(view["totals"]))
    for by in ("kind", "model", "tenant"):
        for name, one in view[f"by_{by}"].items():
            shown.add_row(f"{by} {name}", *_cells(one))
    out = Console(highlight=False)
    out.print(shown)
    out.print(f"index: {view['index']['state']}, {view['index'].get('rows', 0):.0f} rows")
    if view["store"]["warning"]:
        out.print(f"store: {view['store']['warning']}")


def list_entries(gateway: Gateway, *, wanted: Mapping[str, str | None], limit: int) -> None:
    """Print entries, the longest-lived first: as a table where it fits, else as two lines for each."""
    found = gateway.ask("GET", "/entries", {**wanted, "limit": limit})["entries"]
    rows = [_row(one) for one in found]
    shown = Table(*(Column(name, no_wrap=True) for name in _COLUMNS))
    for row in rows:
        shown.add_row(*map(Text, row))  # a tag may look like markup
    out = Console(highlight=False)
    if not rows:
        out.print("No entries.")
    elif out.measure(shown, options=out.options.update(width=_WIDEST)).maximum <= out.width:
        out.print(shown)
    else:
        for entry, kind, model, tenant, tags, hits, size, left in rows:
            about = f"model {model}, tenant {tenant}" + (f", tags {tags}" if tags else "")
            text = f"{entry} {kind}, {hits} hits, {size} bytes, ends in {left}\n  {about}"
            out.print(text, markup=False, soft_wrap=True)


def delete(
    gateway: Gateway, *, entry: str | None, wanted: Mapping[str, str | None], is_all: bool, reason: str | None
) -> None:
    """Forget one answer, or all that is wanted; prints how many entries it was."""
    is_named = any(wanted.values())
    if (entry is not None) + is_named + is_all != 1:
        raise CacheRefused("name an entry, or any of --tag, --model and --tenant, or say --all: one of the three")
    if entry is not None:
        answer = gateway.ask("DELETE", f"/entries/{entry}", {"reason": reason})
    else:
        params = {**wanted, "reason": reason, **({"all": "true"} if is_all else {})}
        answer = gateway.ask("DELETE", "", params)
    Console(highlight=False).print(f"{answer['deleted']} entries were forgotten, at every worker and node")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    left = f"{max(0.0, one['ends_at'] - time.time()) / 3600:.1f}h"
    tags = ", ".join(sorted(one["tags"]))
    return one["entry"], one["kind"], one["model"], one["tenant"], tags, str(one["hits"]), str(one["size_bytes"]), left


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    return str(one["entries"]), str(one["size_bytes"]), str(one["hits"]), f"{one['saved_usd']:.4f}"


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {reply.status_code}"
