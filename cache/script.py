"""Run a script on the server: by its digest, and by its text where the server does not know it yet."""

from __future__ import annotations

from typing import Any

import hiredis

from cache.catalogue_scripts import Script
from cache.link import SharedLink


async def run_script(link: SharedLink, script: Script, *words: str | int | bytes) -> Any:
    """Return the script's answer, a refusal as a `hiredis.ReplyError` value; raises `StoreDown`."""
    answer = await link.ask("EVALSHA", script.digest, 0, *words)
    if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
        return await link.ask("EVAL", script.text, 0, *words)
    return answer
