"""Run a script on the server, by its digest or else by its text, and read the rows in its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from cache.catalogue_scripts import Script
from cache.link import SharedLink

Row = tuple[str, str]
"""A semantic entry's partition and id."""


async def run_script(link: SharedLink, script: Script, *words: str | int | bytes) -> Any:
    """Return the script's answer, a refusal as a `hiredis.ReplyError` value; raises `StoreDown`."""
    answer = await link.ask("EVALSHA", script.digest, 0, *words)
    if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
        return await link.ask("EVAL", script.text, 0, *words)
    return answer


def rows_of(words: Sequence[bytes]) -> list[Row]:
    """Read the partition and id, in turns, of each entry that a script has taken out."""
    names = [word.decode() for word in words]
    return list(zip(names[::2], names[1::2], strict=True))
