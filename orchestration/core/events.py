"""The answer as a stream: one `Start`, then `Delta`s, then one `Finish`. A plain answer is a short stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from orchestration.core.value import value


class Part(StrEnum):
    """What a `Delta` carries."""

    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL_CALL = "tool_call"
    PAYLOAD = "payload"


@value
class Usage:
    """Tokens that a call was counted for.

    Parts of the prompt: `cached_tokens` were not computed anew, `cache_write_tokens` were put into a provider's cache.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Count the prompt and the answer together."""
        return self.prompt_tokens + self.completion_tokens


@value
class Start:
    """The answer begins: the model that gives it (its real name) and the backend that runs it.

    `usage` is what is counted by then, where anything is: the prompt's part.
    """

    model: str
    backend: str
    # Not compared: the same answer begins the same way, whoever counted its prompt early.
    usage: Usage | None = field(default=None, compare=False)


@value
class Delta:
    """A piece of one choice's answer, with everything that was ready, so often several tokens.

    `text` is the piece of a TEXT, REASONING or REFUSAL part. `data` is the JSON value of a TOOL_CALL (the
    element of OpenAI's `delta.tool_calls`) or of a PAYLOAD (embeddings: the list of `{"index", "embedding"}`).
    `logprobs` is OpenAI's `content` list for chat, or its `logprobs` object for completions. `raw` holds the
    whole upstream frames in `dialect`'s wire format and is valid only while nobody changed the event: a layer
    that changes it sets `raw=None`. It stands for `covers` events, this one and those before it, which have an empty
    `raw` then; where one of them is missing or was changed, it stands for none.
    """

    choice: int = 0
    part: Part = Part.TEXT
    text: str = ""
    data: Any = None
    logprobs: Any = None
    raw: bytes | None = None
    dialect: str | None = None
    covers: int = 1

    def with_raw(self, raw: bytes | None, dialect: str | None, *, covers: int = 1) -> Delta:
        """Copy the piece with other frames; `dataclasses.replace` takes five times as long."""
        return Delta(self.choice, self.part, self.text, self.data, self.logprobs, raw, dialect, covers)


@value
class Finish:
    """The answer is complete: why each choice ended (OpenAI's words) and what it used, if anybody counted.

    `stops` holds, by choice, the stop string that ended it, where the backend says so. `raw` is what was written behind
    the last `Delta`'s, or a whole answer's body; it stands for `covers` deltas before it, too.
    """

    reasons: Mapping[int, str] = field(default_factory=lambda: {0: "stop"})
    usage: Usage | None = None
    raw: bytes | None = None
    dialect: str | None = None
    stops: Mapping[int, str] = field(default_factory=dict)
    covers: int = 0

    def with_raw(self, raw: bytes | None, dialect: str | None, *, covers: int = 0) -> Finish:
        """Copy the end with other frames."""
        return Finish(self.reasons, self.usage, raw, dialect, self.stops, covers)


Event = Start | Delta | Finish
