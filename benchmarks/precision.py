"""Say what each precision costs in quality: one table over a text. `python -m benchmarks.precision [--text FILE]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from backends.engine.attn.cpu import CpuPlan
from backends.engine.attn.kv_store import KvStore
from backends.engine.csrc.build import load_kernels
from backends.engine.model.loader import LoadedModel, load
from backends.engine.model.packed import PackedLlama
from backends.engine.runner.batch import lay_out
from backends.engine.sched.decision import Decision, Row
from backends.local.gguf_vocabulary import read_gguf_vocabulary
from gateway import model_store

PRECISIONS = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"), ("bfloat16", "int4"))
PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Quality:
    """How far the logprobs of one precision are from float32's, in nats, and how often the likeliest token is its."""

    mean_error: float
    max_error: float
    likely_error: float
    agreement: float
    divergence: float
    perplexity: float


def logprobs(model: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Return the logprobs (N, V) after each token of a text, by the kernels in one step."""
    pages = tuple(range(-(-len(tokens) // PAGE_SIZE)))
    batch = lay_out(Decision(1, (Row(0, 0, tuple(tokens), pages, None),)), page_size=PAGE_SIZE)
    store = KvStore.allocate(
        model.shape, num_pages=len(pages), page_size=PAGE_SIZE, dtype=model.dtype, device=model.device
    )
    packed = PackedLlama(model.shape, model.weights)
    flat, positions = torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions)
    hidden = packed.forward(flat, positions, CpuPlan(store, batch, num_heads=model.shape.num_heads))
    return torch.log_softmax(packed.logits(hidden, torch.arange(len(tokens))), dim=-1)


def compare(given: torch.Tensor, exact: torch.Tensor, tokens: Sequence[int]) -> Quality:
    """Compare logprobs (N, V) with float32's. `likely_error` is the mean over tokens with more than a hundredth."""
    errors, likely = (given - exact).abs(), exact > np.log(0.01)
    following = torch.tensor(tokens[1:])[:, None]
    return Quality(
        mean_error=errors.mean().item(),
        max_error=errors.max().item(),
        likely_error=errors[likely].mean().item(),
        agreement=(given.argmax(dim=-1) == exact.argmax(dim=-1)).float().mean().item(),
        divergence=(exact.exp() * (exact - given)).sum(dim=-1).mean().item(),
        perplexity=(-given[:-1].gather(1, following).mean()).exp().item(),
    )


@torch.inference_mode()
def measure(path: Path, tokens: Sequence[int]) -> dict[str, Quality]:
    """Measure every precision on the same text; the first is what the others are compared with."""
    rows: dict[str, Quality] = {}
    exact: torch.Tensor | None = None
    for dtype, quantization in PRECISIONS:
        model = load(path, dtype=dtype, device=torch.device("cpu"), progress=lambda *_: None, quantization=quantization)
        given = logprobs(model, tokens)
        exact = given if exact is None else exact
        rows[dtype if quantization == "none" else quantization] = compare(given, exact, tokens)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("docs/architecture.md"))
    parser.add_argument("--tokens", type=int, default=512, help="how much of the text (default: 512)")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    options = parser.parse_args()
    load_kernels(model_store.compiled_folder(), progress=lambda *_: None)
    path = model_store.fetch(options.model)
    tokens = read_gguf_vocabulary(path).tokenizer.encode(options.text.read_text()).ids[: options.tokens]
    table = Table(title=f"{options.model} on {len(tokens)} tokens of {options.text}")
    headings = ("weights", "mean error", "max", "of likely tokens", "greedy agrees", "divergence", "perplexity")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "weights" else "right")
    for name, row in measure(path, tokens).items():
        figures = (row.mean_error, row.max_error, row.likely_error, row.agreement, row.divergence, row.perplexity)
        table.add_row(name, *(f"{figure:,.4f}" for figure in figures))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
