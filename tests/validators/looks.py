"""Look at one text with one check, as the settings would build it."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestration.core import Request
from tests.validators.scripts import make_call
from validators.check import Context, Stage, Verdict
from validators.edits import edited, on_original
from validators.registry import OWN
from validators.shadow import normalise


def verdict_of(
    name: str, text: str, *, stage: Stage = Stage.OUTPUT, request: Request | None = None, **options: Any
) -> Verdict:
    """Return a check's verdict on a text's shadow."""
    context = Context(stage, "choices[0].text", request=request or make_call().request)
    return asyncio.run(OWN[name](options).check(normalise(text).text, context))


def rewritten(name: str, text: str, **options: Any) -> str:
    """Return a text with what a check asks for put in place."""
    shadow = normalise(text)
    verdict = verdict_of(name, text, **options)
    return edited(text, on_original(verdict.spans, shadow))
