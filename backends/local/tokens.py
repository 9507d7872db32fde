"""A local model's token ids, for those who want to count or see them without asking the model."""

from __future__ import annotations

from collections.abc import Sequence

from backends.local.capacity import Capacity
from backends.local.model import LocalModel
from backends.local.prompts import read_prompts
from orchestration.core.errors import InvalidRequest
from orchestration.core.request import Request

_NO_LIMIT = Capacity(2**62, 2**62)


class LocalTokens:
    """Turn texts and chats into the ids that the model would read, and ids into text; nothing is run."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model

    async def encode_text(self, text: str, *, adds_special: bool) -> list[int]:
        """Return a text's ids, behind the model's first token where it wants one and `adds_special`."""
        return await (await self._model.text()).encode(text, adds_special=adds_special)

    async def encode_chat(self, request: Request) -> list[int]:
        """Return a chat's ids up to where the assistant speaks, however many; raises `InvalidRequest` by field."""
        (prompt,) = await read_prompts(request, text=await self._model.text(), capacity=_NO_LIMIT)
        return prompt

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the ids' text, special tokens by name; raises `InvalidRequest` for ids that the model has not."""
        text = await self._model.text()
        if not all(0 <= token_id < text.vocab_size for token_id in token_ids):
            raise InvalidRequest(f"Token ids go from 0 to {text.vocab_size - 1} for this model.", param="tokens")
        return b"".join(text.pieces.spell(token_id) for token_id in token_ids).decode("utf-8", "replace")

    async def label(self, token_id: int) -> str:
        """Return how one token is shown to a reader."""
        return (await self._model.text()).pieces.label(token_id)

    async def max_tokens(self) -> int:
        """Return how many tokens a prompt and its answer may have together, as the engine says."""
        return (await self._model.link.info()).capacity.tokens
