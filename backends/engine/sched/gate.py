"""The gate: what can never run is refused at submission, what cannot run yet waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.engine.config import EngineConfig
from backends.engine.sched.admission import ADMISSIONS, OutputLengths
from backends.engine.sched.forecast import Forecast
from backends.engine.sched.request import Request
from backends.engine.types import RefusalCode, Refused, Submission

MAX_PRIORITY = 1000


class Gate:
    """Check submissions, and forecast what the running will hold, by the rule named in the settings."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._admits = ADMISSIONS[config.admission]
        self._predicts = config.admission == "future_peak"
        self._lengths = OutputLengths()

    def check(self, submission: Submission) -> None:
        """Raise `Refused` for a submission with bad values, or one that could not run on an empty engine."""
        submission.params.check()
        self._check_prompt(submission.prompt)
        if abs(submission.priority) > MAX_PRIORITY:
            message = f"priority is {submission.priority}; it must be from {-MAX_PRIORITY} to {MAX_PRIORITY}"
            raise Refused(RefusalCode.BAD_PARAMS, message)
        num_prompt, max_tokens = len(submission.prompt), submission.params.max_tokens
        total = num_prompt + max_tokens
        asked = f"{num_prompt} prompt tokens and max_tokens {max_tokens} make {total}"
        if total > self._config.max_len:
            raise Refused(RefusalCode.NEVER_FITS, f"{asked}; the context holds {self._config.max_len}")
        if self._config.pages_for(total - 1) > self._config.num_pages:  # the last token is never computed
            raise Refused(RefusalCode.NEVER_FITS, f"{asked}; the KV pool holds {self._config.num_slots}")

    def forecast(self, running: Iterable[Request]) -> Forecast:
        """Return what these requests will hold by what is known now."""
        return Forecast(running, config=self._config, admission=self._admits, remaining=self._remaining)

    def note_length(self, num_generated: int) -> None:
        """Learn from an answer that ended by itself or by its limit."""
        self._lengths.add(num_generated)

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise Refused(RefusalCode.BAD_PARAMS, "prompt is empty; it must hold at least one token")
        last = self._config.vocab_size - 1
        if min(prompt) < 0 or max(prompt) > last:
            stray = next(token for token in prompt if not 0 <= token <= last)
            raise Refused(RefusalCode.BAD_PARAMS, f"prompt holds token {stray}; ids go from 0 to {last}")

    def _remaining(self, request: Request) -> int:
        if not self._predicts:
            return request.num_allowed
        return self._lengths.remaining(generated=request.num_generated, allowed=request.num_allowed)
