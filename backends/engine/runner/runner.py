"""The runner: computes a decision and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.engine.attn.kv_store import KvStore
from backends.engine.attn.ref import ReferencePlan
from backends.engine.model.llama import Llama
from backends.engine.model.loader import LoadedModel
from backends.engine.runner.batch import lay_out
from backends.engine.sample.logprobs import token_logprobs
from backends.engine.sample.sampler import draw_tokens
from backends.engine.sched.decision import Decision, Draw
from backends.engine.types import Sampled, TokenLogprobs


class Runner:
    """One model and its store of keys and values; the pages that a decision names are all the state there is."""

    def __init__(self, model: LoadedModel, *, num_pages: int, page_size: int) -> None:
        self._device = model.device
        self._llama = Llama(model.shape, model.weights)
        self._page_size = page_size
        self._store = KvStore.allocate(
            model.shape, num_pages=num_pages, page_size=page_size, dtype=model.dtype, device=model.device
        )

    @torch.inference_mode()
    def run(self, decision: Decision) -> list[Sampled]:
        """Compute all rows in one forward pass; returns what was drawn for the rows that draw."""
        batch = lay_out(decision, page_size=self._page_size)
        tokens = torch.from_numpy(batch.tokens).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        hidden = self._llama.forward(tokens, positions, ReferencePlan(self._store, batch))
        if not batch.draws:
            return []
        logits = self._llama.logits(hidden[torch.from_numpy(batch.drawn).to(self._device)])
        return _sample(logits, batch.draws)


def _sample(logits: torch.Tensor, draws: Sequence[tuple[int, Draw]]) -> list[Sampled]:
    tokens = draw_tokens(logits, [draw for _, draw in draws])
    logprobs = _logprobs(logits, draws, tokens)
    return [Sampled(key, token, logprobs.get(key)) for (key, _), token in zip(draws, tokens, strict=True)]


def _logprobs(
    logits: torch.Tensor, draws: Sequence[tuple[int, Draw]], tokens: Sequence[int | None]
) -> dict[int, TokenLogprobs]:
    """Return the logprobs of the rows that asked for them, by request."""
    asked = [
        (index, key, token, draw.params.logprobs)
        for index, ((key, draw), token) in enumerate(zip(draws, tokens, strict=True))
        if draw.params.logprobs is not None and token is not None
    ]
    if not asked:
        return {}
    rows, keys, chosen, counts = zip(*asked, strict=True)
    return dict(zip(keys, token_logprobs(logits[list(rows)], chosen, counts), strict=True))
