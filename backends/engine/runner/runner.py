"""The runner: computes a decision and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from backends.engine.attn.cpu import CpuPlan
from backends.engine.attn.kv_store import KvStore
from backends.engine.attn.ref import ReferencePlan
from backends.engine.model.llama import Llama
from backends.engine.model.loader import LoadedModel
from backends.engine.model.packed import PackedLlama
from backends.engine.runner.batch import Batch, Ints, lay_out
from backends.engine.runner.pages import PageMover
from backends.engine.sample.kernel import draw_tokens_by_kernel
from backends.engine.sample.logprobs import token_logprobs
from backends.engine.sample.sampler import draw_tokens
from backends.engine.sched.decision import Decision, Draw
from backends.engine.types import Sampled, TokenLogprobs


class Decoder(Protocol):
    """Computes a model over batches, reading and writing a store."""

    def forward(self, batch: Batch, store: KvStore) -> torch.Tensor:
        """Return the last hidden states (N, hidden), float32, of a batch's N tokens."""

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return float32 logits (R, V) for the R tokens after which the batch draws."""


class Runner:
    """One model and its store of keys and values; the pages that a decision names are all the state there is.

    With `kernels` the CPU kernels compute, which must have been loaded and must take the model's shape. Keys and
    values are kept in `kv_dtype`, or in the model's own type.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_pages: int,
        page_size: int,
        num_swap_pages: int = 0,
        kernels: bool = False,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self._decoder: Decoder = _KernelDecoder(model) if kernels else _ReferenceDecoder(model)
        self._draw_tokens = draw_tokens_by_kernel if kernels else draw_tokens
        self._page_size = page_size
        self._store = KvStore.allocate(
            model.shape, num_pages=num_pages, page_size=page_size, dtype=kv_dtype or model.dtype, device=model.device
        )
        self._mover = PageMover(self._store, num_swap_pages=num_swap_pages)

    @torch.inference_mode()
    def run(self, decision: Decision) -> list[Sampled]:
        """Move pages, then compute all rows in one forward pass; returns what was drawn for the rows that draw."""
        self._mover.move(decision)
        if not decision.rows:
            return []
        batch = lay_out(decision, page_size=self._page_size)
        hidden = self._decoder.forward(batch, self._store)
        if not batch.draws:
            return []
        logits = self._decoder.logits(hidden, batch)
        tokens = self._draw_tokens(logits, [draw for _, draw in batch.draws])
        logprobs = _logprobs(logits, batch.draws, tokens)
        return [Sampled(key, token, logprobs.get(key)) for (key, _), token in zip(batch.draws, tokens, strict=True)]


class _ReferenceDecoder:
    """Plain torch, on any device."""

    def __init__(self, model: LoadedModel) -> None:
        self._device = model.device
        self._llama = Llama(model.shape, model.weights)

    def forward(self, batch: Batch, store: KvStore) -> torch.Tensor:
        tokens, positions = self._place(batch.tokens), self._place(batch.positions)
        return self._llama.forward(tokens, positions, ReferencePlan(store, batch))

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self._llama.logits(hidden, self._place(batch.drawn))

    def _place(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)


class _KernelDecoder:
    """The CPU kernels."""

    def __init__(self, model: LoadedModel) -> None:
        self._llama = PackedLlama(model.shape, model.weights)
        self._num_heads = model.shape.num_heads

    def forward(self, batch: Batch, store: KvStore) -> torch.Tensor:
        tokens, positions = torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions)
        return self._llama.forward(tokens, positions, CpuPlan(store, batch, num_heads=self._num_heads))

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self._llama.logits(hidden, torch.from_numpy(batch.drawn))


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
