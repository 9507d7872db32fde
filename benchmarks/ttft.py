"""Measure the time to the first token of a long prompt, the engine alone: `python -m benchmarks.ttft`.

One engine per variant, in this process, without the prefix cache; variants take turns, so that whatever else the
machine does meets them all. `cold` is the first prompt after the engine was made, `warm` the median of those after it.
The limit is the prompt's arithmetic at the rate of one large bfloat16 product of torch, measured beside it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table

from backends.engine.attn.kv_store import KV_DTYPES
from backends.engine.config import EngineConfig
from backends.engine.core import EngineCore
from backends.engine.csrc.build import load_kernels
from backends.engine.model.loader import LoadedModel, load
from backends.engine.model.shape import ModelShape
from backends.engine.runner.runner import Runner
from backends.engine.types import SamplingParams, Submission
from gateway import model_store


@dataclass(frozen=True, slots=True)
class Variant:
    """What one engine is made with."""

    kv_dtype: str
    page_size: int
    step_tokens: int


@dataclass(slots=True)
class Times:
    """Wall and CPU seconds of each prompt, the first one cold."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def make_engine(model: LoadedModel, variant: Variant, num_tokens: int) -> EngineCore:
    """Make an engine without the prefix cache and with room for one prompt."""
    num_pages = -(-(num_tokens + 1) // variant.page_size)
    settings = EngineConfig(
        vocab_size=model.shape.vocab_size,
        max_len=model.shape.max_len,
        eos_ids=model.shape.eos_ids,
        num_pages=num_pages,
        page_size=variant.page_size,
        max_num_seqs=8,
        max_batched_tokens=variant.step_tokens,
        prefix_cache=False,
    )
    kv_dtype = KV_DTYPES.get(variant.kv_dtype, model.dtype)
    runner = Runner(model, num_pages=num_pages, page_size=variant.page_size, kernels=True, kv_dtype=kv_dtype)
    return EngineCore(settings, runner, new_seed=lambda: 0)


def ask(engine: EngineCore, times: Times, num_tokens: int, seed: int) -> None:
    """Run one prompt of random tokens up to its first token."""
    draw = random.Random(seed)
    prompt = tuple(draw.randrange(1000, 40000) for _ in range(num_tokens))
    cpu, wall = time.process_time(), time.perf_counter()
    engine.submit(Submission(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    times.wall_s.append(time.perf_counter() - wall)
    times.cpu_s.append(time.process_time() - cpu)


def limit_s(shape: ModelShape, num_tokens: int) -> float:
    """Return the CPU seconds that the prompt's products and attention take at the rate of one large product."""
    width = 1024
    a, b = (torch.randn(width, width).to(torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(9):
        begun = time.process_time()
        torch.mm(a, b)
        seconds.append(time.process_time() - begun)
    per_layer = shape.hidden_size * (sum(shape.qkv_sizes) + shape.qkv_sizes[0] + 3 * shape.intermediate_size)
    attention = 2 * shape.qkv_sizes[0] * num_tokens / 2  # scores and values, over half of the prompt on average
    flop = 2 * num_tokens * shape.num_layers * (per_layer + attention) + 2 * shape.hidden_size * shape.vocab_size
    return flop / (2 * width**3 / min(seconds))


def measure(variants: Sequence[Variant], options: argparse.Namespace) -> None:
    """Run all variants in turn and print their medians."""
    torch.set_num_threads(options.threads)
    load_kernels(model_store.cache_folder() / "compiled", progress=lambda what, done, total: None)
    path = model_store.fetch("smollm2-135m-instruct")
    device = torch.device("cpu")
    model = load(path, dtype=options.dtype, device=device, progress=lambda what, done, total: None)
    load_before = os.getloadavg()[0]
    engines = {variant: make_engine(model, variant, options.tokens) for variant in variants}
    times = {variant: Times() for variant in variants}
    for repeat in range(options.repeats + 1):
        for variant, engine in engines.items():
            ask(engine, times[variant], options.tokens, repeat)
    limit = limit_s(model.shape, options.tokens)
    table = Table(title=f"Prompt of {options.tokens} tokens, load {load_before:.1f}, limit {limit:.3f} CPU s")
    for heading in (
        "KV",
        "page",
        "step tokens",
        "cold wall s",
        "warm wall s",
        "cold CPU s",
        "warm CPU s",
        "tokens/CPU s",
        "of limit",
    ):
        table.add_column(heading, justify="right")
    for variant, each in times.items():
        wall, cpu = statistics.median(each.wall_s[1:]), statistics.median(each.cpu_s[1:])
        figures = (each.wall_s[0], wall, each.cpu_s[0], cpu)
        shown = [variant.kv_dtype, str(variant.page_size), str(variant.step_tokens), *(f"{one:.3f}" for one in figures)]
        table.add_row(*shown, f"{options.tokens / cpu:,.0f}", f"{limit / cpu:.0%}")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--kv-dtypes", nargs="+", choices=("auto", *KV_DTYPES), default=["auto", "int8"])
    parser.add_argument("--page-sizes", nargs="+", type=int, default=[16])
    parser.add_argument("--step-tokens", nargs="+", type=int, default=[128, 256, 512])
    options = parser.parse_args()
    variants = [
        Variant(kv_dtype, page_size, step_tokens)
        for kv_dtype in options.kv_dtypes
        for page_size in options.page_sizes
        for step_tokens in options.step_tokens
    ]
    measure(variants, options)


if __name__ == "__main__":
    main()
