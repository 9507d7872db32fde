"""Logprobs in OpenAI's two shapes, given out together with the text that they belong to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backends.local.generation import TokenLogprobs
from backends.local.pieces import Pieces
from orchestration.core.request import Kind

# JSON has no infinity; this is what OpenAI writes for a token that cannot come.
_LEAST = -9999.0


@dataclass(frozen=True, slots=True)
class _Entry:
    token_id: int
    logprobs: TokenLogprobs
    begin: int
    end: int


class LogprobWriter:
    """Keep each token's logprobs until its text is out, so that both are cut at the same place.

    A token belongs to the text where its first character does; `num_alternatives` others are written per token.
    """

    def __init__(self, kind: Kind, *, pieces: Pieces, num_alternatives: int) -> None:
        self._kind = kind
        self._pieces = pieces
        self._num_alternatives = num_alternatives
        self._entries: deque[_Entry] = deque()

    def add(self, token_id: int, logprobs: TokenLogprobs, *, begin: int, end: int) -> None:
        """Take a token whose text goes from character `begin` of the answer to `end`."""
        self._entries.append(_Entry(token_id, logprobs, begin, end))

    def release(self, num_chars: int, *, is_end: bool) -> Any:
        """Return the logprobs of the tokens within the first `num_chars` that were not given yet; None if none.

        At the end a token counts that only begins there, and what begins later is dropped: it was cut away.
        """
        ready = []
        while self._entries and self._entries[0].begin < num_chars and (is_end or self._entries[0].end <= num_chars):
            ready.append(self._entries.popleft())
        if not ready:
            return None
        return self._write_chat(ready) if self._kind is Kind.CHAT else self._write_completion(ready)

    def _write_chat(self, entries: Sequence[_Entry]) -> list[dict[str, Any]]:
        return [
            {
                **self._describe(entry.token_id, entry.logprobs[0]),
                "top_logprobs": [self._describe(*top) for top in entry.logprobs[1][: self._num_alternatives]],
            }
            for entry in entries
        ]

    def _describe(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._pieces.label(token_id),
            "logprob": _finite(logprob),
            "bytes": list(self._pieces[token_id]),
        }

    def _write_completion(self, entries: Sequence[_Entry]) -> dict[str, Any]:
        tops = None
        if self._num_alternatives:
            tops = [self._write_tops(entry) for entry in entries]
        return {
            "tokens": [self._pieces.label(entry.token_id) for entry in entries],
            "token_logprobs": [_finite(entry.logprobs[0]) for entry in entries],
            "top_logprobs": tops,
            "text_offset": [entry.begin for entry in entries],
        }

    def _write_tops(self, entry: _Entry) -> dict[str, float]:
        """Write the alternatives, and the token itself where it is none of them; equal labels keep the likelier."""
        tops: dict[str, float] = {}
        for token_id, logprob in [*entry.logprobs[1][: self._num_alternatives], (entry.token_id, entry.logprobs[0])]:
            tops.setdefault(self._pieces.label(token_id), _finite(logprob))
        return tops


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST
