"""What the client asked for. Every field that was sent is kept; only what a layer touches has a name here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What sort of answer a call wants."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    COUNT = "count"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


TOKEN_KINDS = frozenset({Kind.COUNT, Kind.TOKENIZE, Kind.DETOKENIZE})
"""Questions about a prompt's tokens: nothing is generated, and nothing is paid for."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: `fields` in OpenAI's shape for its kind, unknown ones included, never to be mutated.

    `dialect` names the wire format that the client speaks. `raw` is the body as it came, valid only while no
    layer changed a field; `with_fields` drops it. `headers` are those that the dialect's API reads (its version);
    they go along to a backend of the same dialect and are no part of what is asked.
    """

    kind: Kind
    dialect: str
    fields: Mapping[str, Any]
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Name the model as the client asked for it: an alias of ours."""
        return str(self.fields["model"])

    @property
    def is_streamed(self) -> bool:
        """Tell whether the client asked for a stream."""
        return self.fields.get("stream") is True

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """List the chat messages, OpenAI's shape; empty for other kinds."""
        return self.fields.get("messages") or ()

    @property
    def num_choices(self) -> int:
        """Count the answers asked for (`n`)."""
        return int(self.fields.get("n") or 1)

    def with_fields(self, **changes: Any) -> Request:
        """Copy the request with some fields replaced; the body as it came is no longer valid."""
        return Request(self.kind, self.dialect, {**self.fields, **changes}, headers=self.headers)
