"""The gate: what can never run is refused at submission, what cannot run yet waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.engine.config import EngineConfig
from backends.engine.kv.cache import Holding
from backends.engine.sched.admission import ADMISSIONS, Demand, OutputLengths
from backends.engine.sched.request import Request
from backends.engine.types import RefusalCode, Refused, Submission


class Gate:
    """Check submissions, and admit requests by the rule named in the settings."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._admits = ADMISSIONS[config.admission]
        self._predicts = config.admission == "future_peak"
        self._lengths = OutputLengths()

    def check(self, submission: Submission) -> None:
        """Raise `Refused` for a submission with bad values, or one that could not run on an empty engine."""
        submission.params.check()
        self._check_prompt(submission.prompt)
        num_prompt, max_tokens = len(submission.prompt), submission.params.max_tokens
        total = num_prompt + max_tokens
        asked = f"{num_prompt} prompt tokens and max_tokens {max_tokens} make {total}"
        if total > self._config.max_len:
            raise Refused(RefusalCode.NEVER_FITS, f"{asked}; the context holds {self._config.max_len}")
        if self._config.pages_for(total - 1) > self._config.num_pages:  # the last token is never computed
            raise Refused(RefusalCode.NEVER_FITS, f"{asked}; the KV pool holds {self._config.num_slots}")

    def admits(self, request: Request, holding: Holding, running: Iterable[Request]) -> bool:
        """Tell whether a request that would start with `holding` may run beside the running ones."""
        held = [(each, each.holding) for each in running if each.holding is not None]
        if not held:
            return True  # it fits alone, or it had been refused
        *others, candidate = self._demands([*held, (request, holding)])
        return self._admits(others, candidate, self._config.num_slots)

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

    def _demands(self, holders: Sequence[tuple[Request, Holding]]) -> list[Demand]:
        """Return each holder's demand, in order; a shared page counts once, for whoever keeps it longest."""
        remaining = [self._remaining(request) for request, _ in holders]
        demands = [Demand(0, 0)] * len(holders)
        seen: set[int] = set()
        for index in sorted(range(len(holders)), key=lambda each: -remaining[each]):
            request, holding = holders[index]
            assert holding.node is not None
            path = list(holding.node.path())
            num_counted = sum(len(node.pages) for node in path if id(node) in seen)
            seen.update(id(node) for node in path)
            # Both in whole pages: what is held now, and what is held at the end.
            size, num_tokens = self._config.page_size, len(request.tokens)
            now, end = (self._config.pages_for(count) for count in (num_tokens, num_tokens + remaining[index]))
            demands[index] = Demand((now - num_counted) * size, (end - now) * size)
        return demands

    def _remaining(self, request: Request) -> int:
        if not self._predicts:
            return request.num_allowed
        return self._lengths.remaining(generated=request.num_generated, allowed=request.num_allowed)
