"""`/v1/embeddings` and `/v1/rerank` from our own encoder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from cache.owner_client import Embedded
from cache.reranking import rank, ranked_texts
from cache.semantic import IndexFault
from orchestration.core import Call, Delta, Event, Finish, Kind, Part, Start, Usage
from orchestration.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    InvalidRequest,
    LaminaError,
    Overloaded,
)

_MAX_TEXTS = 2048


class EmbeddingSource(Protocol):
    """Where vectors come from. Raises `IndexFault`."""

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """Encode 1 to 2,048 texts."""
        ...

    async def check_health(self) -> str | None:
        """Say what is wrong, in a phrase, or None."""
        ...


class EmbeddingBackend:
    """Answer embedding calls, one payload `[{"index", "embedding"}]`, and rerank calls, one payload
    `[{"index", "relevance_score"}]` of cosines; usage is in the model's tokens.

    Raises `InvalidRequest` for an input that is no text (or 2,048 of them), for token ids and for `dimensions` other
    than the model's; `ContextTooLong` for a text over the model's tokens; `Overloaded` where the queue is full. The
    client is the wiring's to close.
    """

    def __init__(self, client: EmbeddingSource, *, model: str, name: str = "embedder", timeout_s: float = 60.0) -> None:
        self._client = client
        self._model = model
        self._name = name
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        """Name the backend."""
        return self._name

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call."""
        fields = call.request.fields
        is_rerank = call.kind is Kind.RERANK
        param = "documents" if is_rerank else "input"
        texts = ranked_texts(fields) if is_rerank else _texts_of(fields.get("input"))
        try:
            embedded = await self._client.embed(texts, timeout_s=self._timeout_s)
        except IndexFault as fault:
            raise _error_of(fault, param) from fault
        data = rank(embedded.vectors, top_n=fields.get("top_n")) if is_rerank else self._vectors(embedded, fields)
        yield Start(self._model, self._name)
        yield Delta(part=Part.PAYLOAD, data=data)
        yield Finish(usage=Usage(prompt_tokens=sum(embedded.num_tokens)))

    def _vectors(self, embedded: Embedded, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        dimensions = fields.get("dimensions")
        width = embedded.vectors.shape[1]
        if dimensions not in (None, width):
            raise InvalidRequest(
                f"'dimensions' is {width} for the model '{self._model}', not {dimensions!r}; leave it out.",
                param="dimensions",
            )
        return [{"index": place, "embedding": vector.tolist()} for place, vector in enumerate(embedded.vectors)]

    async def check_health(self) -> str | None:
        """Say what is wrong, in a phrase, or None."""
        return await self._client.check_health()

    async def aclose(self) -> None:
        """Hold nothing of its own to let go."""


def _texts_of(given: Any) -> list[str]:
    """Return the texts to encode, or say what `input` has to be."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise InvalidRequest("'input' has to be a text or a list of at least one text.", param="input")
    if all(isinstance(text, int | list) for text in texts):
        raise InvalidRequest("'input' as token ids is not taken here: send the text itself.", param="input")
    if len(texts) > _MAX_TEXTS:
        raise InvalidRequest(f"'input' holds {len(texts)} texts, at most {_MAX_TEXTS} are taken.", param="input")
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"'input[{place}]' has to be a text that is not empty.", param="input")
    return texts


def _error_of(fault: IndexFault, param: str) -> LaminaError:
    match fault.code:
        case "too_long":
            return ContextTooLong(f"The input is too long: {fault}.", param=param)
        case "bad_params":
            return InvalidRequest(f"The input cannot be encoded: {fault}.", param=param)
        case "busy":
            return Overloaded(f"The embedder is busy: {fault}.", retry_after_s=1.0)
        case "slow":
            return BackendTimeout("The embedder took too long.")
        case "down":
            return BackendUnavailable("The embedder does not answer at the moment.")
        case _:
            return BackendError(f"The embedder failed: {fault.code}.")
