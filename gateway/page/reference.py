"""The OpenAPI document for people: a page of its own, which loads nothing from elsewhere.

FastAPI's own page runs scripts of a public server on this origin, where the admin side may be open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from gateway.page.routes import HEADERS, TYPES

Json = Mapping[str, Any]
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lamina: API</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="/page/mark.svg">
<link rel="stylesheet" href="/page/page.css"></head><body><main>
<h1>Lamina's API</h1><p>For programs: <a href="/openapi.json">/openapi.json</a>. <a href="/">The page</a> has a
playground.</p>
"""


def reference_routes(document: Callable[[], Json]) -> APIRouter:
    """Return the route of the page, written from the document when it is asked for."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def get_docs() -> Response:
        html = "".join(_lines(document()))
        return Response(html, headers={**HEADERS, "content-type": TYPES[".html"]})

    return router


def _lines(document: Json) -> Iterator[str]:
    yield _HEAD
    for path, operations in document["paths"].items():
        shared = operations.get("parameters", [])
        for method, operation in operations.items():
            if method != "parameters":
                all_parameters = [*shared, *operation.get("parameters", ())]
                yield from _operation(method.upper(), path, {**operation, "parameters": all_parameters})
    yield "<h2>Schemas</h2>"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>'
    yield "</main></body></html>"


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    summary = escape(operation.get("summary", ""))
    yield f"<details><summary><code>{method} {escape(path)}</code> {summary}</summary>"
    if operation.get("description"):
        yield f"<p>{escape(operation['description'])}</p>"
    rows = [(one["name"], one["in"], one.get("description", "")) for one in operation.get("parameters", ())]
    rows += [(status, "reply", reply["description"]) for status, reply in operation.get("responses", {}).items()]
    cells = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    yield f"<table>{cells}</table>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body: <code>{escape(kind)}</code></p>{_json(content.get('schema', {}))}"
    yield "</details>"


def _json(value: Any) -> str:
    """Write JSON; what refers to a schema leads there."""
    text = escape(json.dumps(value, indent=2, ensure_ascii=False))
    mark = "#/components/schemas/"
    pieces = text.split(mark)
    linked = pieces[0]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("&quot;")
        linked += f'<a href="#{name}">{mark}{name}</a>&quot;{rest}'
    return f"<pre>{linked}</pre>"
