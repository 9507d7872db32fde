"""Models for the engine's tests, and the oracle that they are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig, LlamaConfig, LlamaForCausalLM

from backends.engine.csrc.build import load_kernels
from backends.engine.model.loader import LoadedModel, load
from gateway import model_store

GreedyCheck = Callable[[Sequence[int], Sequence[int]], None]

torch.set_num_threads(2)  # as the engine does; more would only wait for one another here


def _silent(what: str, done: int, total: int) -> None:
    assert what == "weights"
    assert 0 <= done <= total


@pytest.fixture(scope="session")
def kernels() -> Path:
    """Compile and load the CPU kernels; gives the folder that keeps them, which the engine shares."""
    folder = model_store.cache_folder() / "compiled"
    load_kernels(folder, progress=lambda what, done, total: None)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a random Llama of two layers."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_random_llama(folder, hidden_size=48, intermediate_size=80, num_heads=6)
    return folder


def save_random_llama(folder: Path, *, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
    """Write a Llama of two layers with the same random weights each time."""
    torch.manual_seed(7)
    shape = LlamaConfig(
        vocab_size=97,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=96,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    """Give that model, loaded by the engine."""
    return load(tiny_folder, dtype="float32", device=torch.device("cpu"), progress=_silent)


@pytest.fixture(scope="session")
def tiny_greedy(tiny_folder: Path) -> GreedyCheck:
    """Give a check that an answer is the tiny model's greedy one, by transformers."""
    return _greedy_check(LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32))


@pytest.fixture(scope="session")
def smollm(language_model: Path) -> LoadedModel:
    """Give the built-in model in float32, loaded by the engine."""
    return load(language_model, dtype="float32", device=torch.device("cpu"), progress=_silent)


@pytest.fixture(scope="session")
def smollm_greedy(language_model: Path) -> GreedyCheck:
    """Give a check that an answer is the built-in model's greedy one, by transformers from the same file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library's own reading of the file
        model = AutoModelForCausalLM.from_pretrained(
            str(language_model.parent),
            gguf_file=language_model.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
    return _greedy_check(model)


def _greedy_check(model: torch.nn.Module) -> GreedyCheck:
    model.eval()

    def check(prompt: Sequence[int], answer: Sequence[int]) -> None:
        # Every token of the answer must be the most likely one after all before it: the greedy answer, by induction.
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == list(answer)

    return check
