"""A backend that repeats what it was told, for demos and tests: no model, no network, honest counts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from orchestration.core.call import Call
from orchestration.core.errors import InvalidRequest
from orchestration.core.events import Delta, Event, Finish, Start, Usage
from orchestration.core.request import Kind, Request

_WORD = re.compile(r"\s*\S+\s*")


class EchoBackend:
    """Answer with the last user's text, or the prompt, word by word with `delay_s` before each.

    Words between spaces count as tokens: `max_tokens` and the usage speak of them. The whole answer is the text
    exactly as it was sent.
    """

    def __init__(
        self,
        *,
        name: str = "echo",
        model: str = "echo",
        delay_s: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._name = name
        self._model = model
        self._delay_s = delay_s
        self._sleep = sleep

    @property
    def name(self) -> str:
        """Name the backend."""
        return self._name

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call."""
        texts = _read_texts(call.request)
        words = _WORD.findall(texts[-1])
        limit = _read_limit(call.request)
        said = words if limit is None else words[:limit]
        yield Start(model=self._model, backend=self._name)
        choices = range(call.request.num_choices)
        for word in said:
            if self._delay_s:
                await self._sleep(self._delay_s)
            for choice in choices:
                yield Delta(choice=choice, text=word)
        reason = "stop" if len(said) == len(words) else "length"
        usage = Usage(
            prompt_tokens=sum(len(text.split()) for text in texts), completion_tokens=len(said) * len(choices)
        )
        yield Finish(reasons=dict.fromkeys(choices, reason), usage=usage)

    async def check_health(self) -> str | None:
        """Say that nothing is wrong."""
        return None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to let go of."""


def _read_texts(request: Request) -> list[str]:
    """Return the texts of the prompt, the one to repeat last."""
    if request.kind is Kind.COMPLETION:
        prompt = request.fields.get("prompt")
        if not isinstance(prompt, str):
            raise InvalidRequest("The echo takes a text as 'prompt'.", param="prompt")
        return [prompt]
    texts = [(message.get("role"), _read_content(message.get("content"))) for message in request.messages]
    spoken = [text for role, text in texts if role == "user"]
    if not spoken:
        raise InvalidRequest("The echo needs a message of the role 'user' to repeat.", param="messages")
    return [*(text for role, text in texts if role != "user"), *spoken]


def _read_content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _read_limit(request: Request) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = request.fields.get(name)
        if limit is None:
            continue
        if type(limit) is not int or limit < 1:
            raise InvalidRequest(f"'{name}' must be a whole number of at least 1, not {limit!r}.", param=name)
        return limit
    return None
