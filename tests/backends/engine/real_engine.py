"""A scheduler over a real model: asks, steps until all is answered, and gives the answers with their logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.engine.config import EngineConfig
from backends.engine.core import EngineCore
from backends.engine.model.loader import LoadedModel
from backends.engine.runner.runner import Runner
from backends.engine.types import SamplingParams, Submission, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of a request, and the logprobs of each."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


class RealEngine:
    """An engine core over a model's runner, its books checked after every step."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_slots: int = 32768,
        page_size: int = 16,
        kernels: bool = True,
        kv_dtype: torch.dtype | None = None,
        **changes: object,
    ) -> None:
        values: dict[str, object] = {"max_num_seqs": 64, "max_batched_tokens": 128, **changes}
        settings = EngineConfig(
            vocab_size=model.shape.vocab_size,
            max_len=model.shape.max_len,
            eos_ids=model.shape.eos_ids,
            num_pages=num_slots // page_size,
            page_size=page_size,
            **values,  # type: ignore[arg-type]  # what tests change
        )
        runner = Runner(model, num_pages=settings.num_pages, page_size=page_size, kernels=kernels, kv_dtype=kv_dtype)
        self.core = EngineCore(settings, runner, new_seed=lambda: 0)

    def answer(self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8, logprobs: int = 0) -> list[Answer]:
        """Return the greedy answers."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=logprobs)
        found: dict[int, Answer] = {
            self.core.submit(Submission(tuple(prompt), params)): Answer((), ()) for prompt in prompts
        }
        while self.core.has_work:
            for output in self.core.step():
                before = found[output.key]
                found[output.key] = Answer(before.tokens + output.tokens, before.logprobs + (output.logprobs or ()))
            self.core.check()
        return list(found.values())
