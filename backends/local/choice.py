"""One choice of an answer: the engine's tokens become text, counts and a reason to end."""

from __future__ import annotations

from collections.abc import Sequence

from backends.local.detokenizer import Detokenizer
from backends.local.generation import Step
from backends.local.logprobs import LogprobWriter
from backends.local.pieces import Pieces
from orchestration.core.errors import BackendError
from orchestration.core.events import Delta
from orchestration.core.request import Kind


class Choice:
    """Follow one choice to its end. `reason` is None until then, and OpenAI's word for why after it."""

    def __init__(
        self, index: int, *, kind: Kind, pieces: Pieces, stops: Sequence[str], num_alternatives: int | None
    ) -> None:
        self._index = index
        self._pieces = pieces
        self._detokenizer = Detokenizer(stops)
        self._logprobs = (
            None if num_alternatives is None else LogprobWriter(kind, pieces=pieces, num_alternatives=num_alternatives)
        )
        self.reason: str | None = None
        self.num_tokens = 0
        """Tokens up to the one that ended the choice, its end token included."""
        self.num_cached = 0
        """Tokens of the prompt that the engine had computed before."""

    @property
    def stop(self) -> str | None:
        """Return the stop string that ended the choice, if one did."""
        return self._detokenizer.stop

    def advance(self, step: Step) -> Delta | None:
        """Take what was ready and return what can be given out of it; raises `BackendError` for a failed sequence.

        When a stop string is complete the choice has its `reason`, though the engine has not ended it yet.
        """
        if step.finish == "error":
            raise BackendError("the engine failed on this request")
        self.num_cached = step.cached_tokens
        text = self._read(step)
        if self._detokenizer.is_stopped:
            self.reason = "stop"
        elif step.finish is not None:
            text += self._detokenizer.end()
            self.reason = "stop" if self._detokenizer.is_stopped else step.finish
        logprobs = None
        if self._logprobs is not None:
            logprobs = self._logprobs.release(self._detokenizer.num_released, is_end=self.reason is not None)
        return Delta(choice=self._index, text=text, logprobs=logprobs) if text or logprobs else None

    def _read(self, step: Step) -> str:
        """Return the text of the step's tokens up to the one that completes a stop string."""
        texts = []
        end_token = len(step.token_ids) - 1 if step.finish == "stop" else None
        for position, token_id in enumerate(step.token_ids):
            self.num_tokens += 1
            piece = b"" if position == end_token else self._pieces[token_id]
            begin = self._detokenizer.num_decoded
            texts.append(self._detokenizer.push(piece))
            if self._logprobs is not None and step.logprobs is not None and piece:
                end = self._detokenizer.num_decoded
                self._logprobs.add(token_id, step.logprobs[position], begin=begin, end=end)
            if self._detokenizer.is_stopped:
                break
        return "".join(texts)
