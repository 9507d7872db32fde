"""The page's generated parts: each stands between two marks, `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.reference.endpoints import endpoints_table
from gateway.reference.errors import errors_table
from gateway.reference.providers import providers_table
from gateway.reference.settings import settings_tables

PAGE = "docs/api.md"
PARTS: Mapping[str, Callable[[], str]] = {
    "endpoints": endpoints_table,
    "errors": errors_table,
    "providers": providers_table,
    "settings": settings_tables,
}


def rewritten(page: str) -> str:
    """Return the page with its generated parts as the code now is; raises `ValueError` where a mark is missing."""
    for name, write in PARTS.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"{PAGE} has no {begin} ... {end}")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{write()}\n{end}{rest.partition(end)[2]}"
    return page
