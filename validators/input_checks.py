"""The layer that checks requests, before any cache or model sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from orchestration.core import Call, Event, Handler, Request
from orchestration.core.errors import CheckUnavailable, InvalidRequest
from validators.check import Context, Outcome, Stage, Subject
from validators.edits import Edit, edited, merged, on_original
from validators.policy import Rule, Tally
from validators.scope import CallerOf, nobody
from validators.shadow import Shadow, normalise
from validators.texts import Path, Text, texts_of, token_ids_of, with_texts

LONG_CHARS = 10_000
TEXTS_A_TURN = 256
"""After so many texts of a request the event loop turns: a body has room for 500,000 of them."""


class InputChecks:
    """Check every text of a request; what is rewritten goes on in a copy of the request.

    Raises `Blocked`, naming the text, and `CheckUnavailable` where a check that fails closed cannot run: token ids
    in place of a text are such a case too.
    """

    def __init__(self, rules: Sequence[Rule], *, caller_of: CallerOf = nobody) -> None:
        self._rules = tuple(rules)
        self._caller_of = caller_of

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer the call as the checks leave it; what they block never reaches `next`."""
        rules = [rule for rule in self._rules if rule.stands_for(call, self._caller_of)]
        tally = Tally(call, rules, Stage.INPUT)
        try:
            request = await _checked(call.request, rules, tally)
        finally:
            tally.record()
        passed = call if request is call.request else replace(call, request=request)
        async with aclosing(next(passed)) as events:
            async for event in events:
                yield event


async def _checked(request: Request, rules: Sequence[Rule], tally: Tally) -> Request:
    _refuse_token_ids(request, rules, tally)
    texts = texts_of(request)
    content = [rule for rule in rules if rule.check.subject is Subject.CONTENT]
    shadows = await _shadows_of(texts) if content else []
    edits: list[list[Edit]] = [[] for _ in texts]
    for rank, rule in enumerate(content):
        await _check_content(rule, texts, shadows, edits, tally, rank=rank)
    changes = {
        text.path: edited(text.text, merged(of_text)) for text, of_text in zip(texts, edits, strict=True) if of_text
    }
    await _check_shape([rule for rule in rules if rule.check.subject is Subject.SHAPE], texts, changes, tally)
    return with_texts(request, changes) if changes else request


def _refuse_token_ids(request: Request, rules: Sequence[Rule], tally: Tally) -> None:
    """Note for every check that it cannot read token ids; raises `InvalidRequest` where one fails closed."""
    field = token_ids_of(request)
    if field is None:
        return
    for rule in rules:
        try:
            tally.miss(rule, reason="token ids cannot be read")
        except CheckUnavailable as exc:
            way_out = "send text, or set that check's 'fail' to open."
            message = f"{field} holds token ids, which the check '{rule.check.name}' cannot read: {way_out}"
            raise InvalidRequest(message, param=field, code="token_ids_not_checked") from exc


async def _check_content(
    rule: Rule,
    texts: Sequence[Text],
    shadows: Sequence[Shadow],
    edits: Sequence[list[Edit]],
    tally: Tally,
    *,
    rank: int,
) -> None:
    for place, (text, shadow, of_text) in enumerate(zip(texts, shadows, edits, strict=True), 1):
        if tally.has_failed(rule):
            return
        if not place % TEXTS_A_TURN:
            await asyncio.sleep(0)
        context = Context(stage=Stage.INPUT, where=text.param, request=tally.request)
        verdict = await tally.judge(rule, shadow.text, context, param=text.param)
        if verdict.outcome is Outcome.REWRITE:
            found = on_original(verdict.spans, shadow, rank=rank)
            of_text.extend(_as_json(edit) if text.is_json else edit for edit in found)


async def _shadows_of(texts: Sequence[Text]) -> list[Shadow]:
    shadows = []
    for text in texts:
        shadows.append(await _shadow_of(text))
        if not len(shadows) % TEXTS_A_TURN:
            await asyncio.sleep(0)
    return shadows


async def _shadow_of(text: Text) -> Shadow:
    """Build a text's shadow; at 1 us for each unusual character, a long one would keep the loop from others."""
    if len(text.text) < LONG_CHARS or text.text.isascii():
        return normalise(text.text, is_json=text.is_json)
    return await asyncio.to_thread(normalise, text.text, is_json=text.is_json)


async def _check_shape(rules: Sequence[Rule], texts: Sequence[Text], changes: dict[Path, str], tally: Tally) -> None:
    if not rules or not texts:
        return
    whole = "".join(changes.get(text.path, text.text) for text in texts)
    param = str(texts[0].path[0])
    for rule in rules:
        if not tally.has_failed(rule):
            await tally.judge(rule, whole, Context(stage=Stage.INPUT, where=param, request=tally.request), param=param)


def _as_json(edit: Edit) -> Edit:
    return replace(edit, replacement=json.dumps(edit.replacement)[1:-1])
