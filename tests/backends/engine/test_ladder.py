"""One answer, however it is computed: every cell of the engine's ways against a model without any of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from backends.engine.config import EngineConfig
from backends.engine.core import EngineCore
from backends.engine.model.loader import LoadedModel, load
from backends.engine.runner.runner import Runner
from backends.engine.types import Output, SamplingParams, Submission
from tests.backends.engine.oracle import Oracle

GreedyCheck = Callable[[Sequence[int], Sequence[int]], None]
Answers = list[tuple[int, ...]]

NUM_TOKENS = 6
NUM_SLOTS = 1024
pytestmark = pytest.mark.usefixtures("kernels")


@dataclass(frozen=True, slots=True)
class Cell:
    """One way: `chunk` tokens per step at most, pages of `page` tokens; `hit` asks all again with the cache on."""

    chunk: int
    page: int
    hit: bool
    mixed: bool
    preempted: bool
    overlap: bool
    swap: bool

    def __str__(self) -> str:
        flags = ("hit", "mixed", "preempted", "overlap", "swap")
        return "-".join([f"chunk{self.chunk}", f"page{self.page}", *(name for name in flags if getattr(self, name))])

    @property
    def can_end(self) -> bool:
        """Tell whether anything is left of a step that everybody is preempted after; else nobody gets anywhere.

        What is in flight when its request gives way is lost, but for the token that it draws.
        """
        is_kept = self.hit and self.page == 1 and not self.overlap
        return not self.preempted or self.swap or self.chunk == NUM_SLOTS or is_kept


ALL = [
    cell
    for cell in itertools.starmap(Cell, itertools.product((1, 7, 64, NUM_SLOTS), (1, 16), *[(False, True)] * 5))
    if cell.can_end
]
CORE = [
    Cell(7, 16, hit=True, mixed=True, preempted=False, overlap=False, swap=False),
    Cell(7, 16, hit=True, mixed=True, preempted=True, overlap=False, swap=True),
    Cell(7, 16, hit=True, mixed=True, preempted=True, overlap=True, swap=True),
    Cell(64, 1, hit=True, mixed=True, preempted=True, overlap=True, swap=False),
    Cell(64, 16, hit=False, mixed=True, preempted=True, overlap=True, swap=True),
    Cell(64, 16, hit=True, mixed=False, preempted=False, overlap=True, swap=False),
    Cell(NUM_SLOTS, 16, hit=False, mixed=True, preempted=True, overlap=False, swap=False),
    Cell(NUM_SLOTS, 16, hit=True, mixed=True, preempted=False, overlap=True, swap=False),
    Cell(1, 16, hit=True, mixed=False, preempted=False, overlap=True, swap=False),
]


def _prompts() -> list[list[int]]:
    draw = random.Random(9)
    prompts = [[draw.randrange(96) for _ in range(length)] for length in (1, 16, 17, 33)]
    return [*prompts, [*prompts[3][:20], 5, 6], [*prompts[3][:20], 5, 7, 8]]  # two that part inside a page


@pytest.fixture(scope="module")
def oracle(tiny_folder: Path) -> Oracle:
    """Give the naive model of the same weights."""
    return Oracle(tiny_folder)


@pytest.fixture(scope="module")
def wanted(oracle: Oracle) -> Answers:
    """Give its answers to the prompts."""
    return [oracle.greedy(prompt, NUM_TOKENS) for prompt in _prompts()]


class Engine:
    """A core over the tiny model in one cell; its books are checked after every step."""

    def __init__(self, model: LoadedModel, cell: Cell, *, kernels: bool = True) -> None:
        self._cell = cell
        config = EngineConfig(
            vocab_size=97, max_len=256, eos_ids=frozenset(), num_pages=NUM_SLOTS // cell.page, page_size=cell.page,
            max_num_seqs=min(8, cell.chunk), max_batched_tokens=cell.chunk, prefix_cache=cell.hit,
            num_swap_pages=NUM_SLOTS // cell.page if cell.swap else 0,
        )  # fmt: skip
        runner = Runner(
            model,
            num_pages=config.num_pages,
            page_size=cell.page,
            num_swap_pages=config.num_swap_pages,
            kernels=kernels,
        )
        self.core = EngineCore(config, runner, new_seed=lambda: 1, overlap=cell.overlap)

    def ask(self, prompts: Sequence[Sequence[int]], *, logprobs: int | None = None) -> list[list[Output]]:
        """Return the outputs of each prompt, asked together or one after another."""
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, logprobs=logprobs)
        outputs: dict[int, list[Output]] = {}
        for prompt in prompts:
            outputs[self.core.submit(Submission(tuple(prompt), params))] = []
            if not self._cell.mixed:
                self._finish(outputs)
        self._finish(outputs)
        return list(outputs.values())

    def _finish(self, outputs: dict[int, list[Output]]) -> None:
        num_steps = 0
        while self.core.has_work:
            for output in self.core.step():
                outputs[output.key].append(output)
            for key in outputs if self._cell.preempted else ():
                self.core._scheduler.preempt(key)
            self.core.check()
            num_steps += 1
            assert num_steps < 5000, self.core.describe()


def _tokens(outputs: list[list[Output]]) -> Answers:
    return [tuple(token for output in each for token in output.tokens) for each in outputs]


def _check(model: LoadedModel, wanted: Answers, cell: Cell, *, kernels: bool) -> None:
    engine = Engine(model, cell, kernels=kernels)
    try:
        for _ in range(1 + cell.hit):
            assert _tokens(engine.ask(_prompts())) == wanted
        stats = engine.core.stats()
        assert (stats["prefix_hit_tokens"] > 0) == cell.hit
        assert (stats["preemptions"] > 0) == cell.preempted
        if not (cell.hit and cell.page == 1):  # where the tree keeps every token, what gave way is found there
            assert (stats["swapped_in_pages"] > 0) == (cell.preempted and cell.swap)
        assert stats["pages_used"] == 0
    finally:
        engine.core.close()


def test_the_oracle_is_transformers(wanted: Answers, tiny_greedy: GreedyCheck) -> None:
    for prompt, answer in zip(_prompts(), wanted, strict=True):
        tiny_greedy(prompt, answer)


@pytest.mark.parametrize("cell", CORE, ids=str)
def test_a_core_cell_answers_as_the_oracle(tiny_model: LoadedModel, wanted: Answers, cell: Cell) -> None:
    _check(tiny_model, wanted, cell, kernels=True)


@pytest.mark.long
@pytest.mark.parametrize("is_fast", [True, False], ids=["kernels", "reference"])
@pytest.mark.parametrize("cell", ALL, ids=str)
def test_every_cell_answers_as_the_oracle(tiny_model: LoadedModel, wanted: Answers, cell: Cell, is_fast: bool) -> None:
    _check(tiny_model, wanted, cell, kernels=is_fast)


@pytest.fixture(scope="module")
def half_model(tiny_folder: Path) -> LoadedModel:
    """Give the tiny model in bfloat16."""
    return load(tiny_folder, dtype="bfloat16", device=torch.device("cpu"), progress=lambda what, done, total: None)


@pytest.mark.parametrize("cell", [CORE[0], CORE[2]], ids=str)
def test_logprobs_in_bfloat16_are_close_to_the_oracles(half_model: LoadedModel, oracle: Oracle, cell: Cell) -> None:
    engine = Engine(half_model, cell)
    for prompt, outputs in zip(_prompts(), engine.ask(_prompts(), logprobs=3), strict=True):
        tokens = [token for output in outputs for token in output.tokens]
        exact = oracle.logprobs([*prompt, *tokens])[len(prompt) - 1 : -1]
        for token, output, row in zip(tokens, outputs, exact, strict=True):
            assert output.logprobs is not None
            assert output.logprobs[0].logprob == pytest.approx(float(row[token]), abs=0.02)
            assert float(row.max()) - float(row[token]) < 0.02  # where the two part, it is between near equals
    engine.core.close()
