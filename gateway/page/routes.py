"""The routes of the page: three files, and the headers that keep a browser to them."""

from __future__ import annotations

import functools
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import Response

from orchestration.core.errors import NotFound

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
FILES = (
    *("index.html", "page.css", "mark.svg", "page.js", "api.js", "call.js", "live.js"),
    *("playground.js", "show.js", "tables.js"),
)
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
}


def page_routes() -> APIRouter:
    """Return the page's routes. They are open: everything that the page shows it asks for with the reader's key."""
    router = APIRouter(include_in_schema=False)
    read = functools.cache(_read)  # once for each application

    @router.api_route("/", methods=["GET", "HEAD"])
    async def get_page() -> Response:
        return _reply(read("index.html"), ".html")

    @router.get("/page/{name}")
    async def get_file(name: str) -> Response:
        if name not in FILES:
            raise NotFound(f"Nothing is at /page/{name[:64]}.", code="unknown_path")
        return _reply(read(name), name[name.rindex(".") :])

    return router


def _reply(body: bytes, suffix: str) -> Response:
    return Response(body, headers={**HEADERS, "content-type": TYPES[suffix]})


def _read(name: str) -> bytes:
    return resources.files("gateway.page").joinpath(name).read_bytes()
