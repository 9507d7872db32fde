"""Layers that look back over a window only: the shape says so, and the tokens are those of transformers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import MinistralConfig, MinistralForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from backends.engine.model.folder import FolderModel
from backends.engine.model.loader import LoadedModel, load
from backends.engine.model.weights import ModelUnreadable
from tests.backends.engine.real_engine import RealEngine

pytestmark = pytest.mark.usefixtures("kernels")

WINDOW = 11
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "eos_token_id": 96,
    "tie_word_embeddings": False,
    "sliding_window": WINDOW,
}
KINDS = ("mistral", "ministral")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give a random Mistral, whose every layer has the window, and a Ministral, whose second layer looks at all."""
    made: dict[str, PreTrainedModel] = {}
    torch.manual_seed(4)
    made["mistral"] = MistralForCausalLM(MistralConfig(**SIZES))
    pattern = ["sliding_attention", "full_attention"]
    made["ministral"] = MinistralForCausalLM(MinistralConfig(**SIZES, layer_types=pattern))
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in made}
    for kind, model in made.items():
        model.save_pretrained(folders[kind])
    return folders


def _load(folder: Path) -> LoadedModel:
    return load(folder, dtype="float32", device=torch.device("cpu"), progress=lambda what, done, total: None)


def _assert_greedy(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int]) -> None:
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == list(answer)


def _prompts() -> list[list[int]]:
    draw = random.Random(6)
    prompts = [[draw.randrange(96) for _ in range(length)] for length in (1, 10, 11, 12, 16, 33, 60)]
    return [*prompts, prompts[-1][:48] + prompts[1]]


@pytest.mark.parametrize("on_kernels", [True, False], ids=["kernels", "reference"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_transformers_in_any_cut_and_from_the_cache(
    folders: dict[str, Path], kind: str, page_size: int, on_kernels: bool
) -> None:
    model, prompts = _load(folders[kind]), _prompts()
    classes = {"mistral": MistralForCausalLM, "ministral": MinistralForCausalLM}
    theirs = classes[kind].from_pretrained(folders[kind], dtype=torch.float32).eval()
    engine = RealEngine(model, page_size=page_size, kernels=on_kernels)
    answers = engine.answer(prompts, max_tokens=16)

    again = engine.answer(prompts, max_tokens=16)
    chunked = RealEngine(model, page_size=page_size, kernels=on_kernels, max_batched_tokens=7, max_num_seqs=7)

    assert engine.core.stats()["prefix_hit_tokens"] > 0
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers]
    assert [answer.tokens for answer in chunked.answer(prompts, max_tokens=16)] == [each.tokens for each in answers]
    for prompt, answer in zip(prompts, answers, strict=True):
        _assert_greedy(theirs, prompt, answer.tokens)


def test_the_window_decides(folders: dict[str, Path], tmp_path: Path) -> None:
    blind = shutil.copytree(folders["mistral"], tmp_path / "blind")
    config = json.loads((blind / "config.json").read_text())
    (blind / "config.json").write_text(json.dumps({**config, "sliding_window": None}))
    prompt = _prompts()[6:7]

    assert RealEngine(_load(blind)).answer(prompt) != RealEngine(_load(folders["mistral"])).answer(prompt)


@pytest.mark.parametrize(
    ("changes", "windows", "window"),
    [
        ({}, (WINDOW, WINDOW), WINDOW),
        ({"sliding_window": None}, (), None),
        ({"use_sliding_window": False}, (), None),
        ({"layer_types": ["full_attention", "sliding_attention"]}, (None, WINDOW), None),
        ({"model_type": "llama"}, (), None),
        ({"model_type": "llama", "layer_types": ["sliding_attention"] * 2}, (WINDOW, WINDOW), WINDOW),
    ],
)
def test_a_folder_says_its_windows(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, object], windows: tuple[int | None, ...],
    window: int | None,
) -> None:  # fmt: skip
    folder = shutil.copytree(folders["mistral"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))

    shape = FolderModel(folder).shape

    assert (shape.windows, shape.window) == (windows, window)


@pytest.mark.parametrize("kinds", [["sliding_attention"], ["sliding_attention", "linear_attention"]])
def test_layers_of_unknown_kinds_are_refused(folders: dict[str, Path], tmp_path: Path, kinds: list[str]) -> None:
    folder = shutil.copytree(folders["mistral"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_types": kinds}))

    with pytest.raises(ModelUnreadable, match="layers of kinds"):
        FolderModel(folder)
