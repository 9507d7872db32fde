"""Weights of 8 and 4 bits: what is computed is what is said, the same in any batch, and close to the plain model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.attn.cpu import CpuPlan
from backends.engine.attn.kv_store import KvStore
from backends.engine.attn.ref import ReferencePlan
from backends.engine.csrc.check import check_kernels
from backends.engine.model.gguf_file import StoredTensor
from backends.engine.model.llama import Llama
from backends.engine.model.loader import LoadedModel, load
from backends.engine.model.packed import PackedLlama, pack
from backends.engine.model.quant import Int4Matrix, linear, quantise_rows, to_int4, to_int8
from backends.engine.model.weights import ModelUnreadable
from backends.engine.runner.batch import Batch, lay_out
from backends.engine.sched.decision import Decision, Row
from backends.local.gguf_vocabulary import read_gguf_vocabulary
from benchmarks.precision import compare, logprobs
from tests.backends.engine.conftest import save_random_llama

pytestmark = pytest.mark.usefixtures("kernels")

TEXT = """The lighthouse stood at the end of the island. Its keeper, an old man with a white beard, lit the lamp every
evening and wrote in his book what he had seen: ships, birds, and the weather. In the winter of that year a storm came
from the north, and for three days nobody could leave the house. On the fourth day the sea was calm again."""
CPU = torch.device("cpu")
BITS = pytest.mark.parametrize("quantization", ["int8", "int4"])


@pytest.fixture(scope="module")
def even_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a random Llama whose matrices may have 4 bits."""
    folder = tmp_path_factory.mktemp("even-llama")
    save_random_llama(folder, hidden_size=64, intermediate_size=96, num_heads=4)
    return folder


def _load(path: Path, quantization: str, dtype: str = "bfloat16") -> LoadedModel:
    return load(path, dtype=dtype, device=CPU, progress=lambda what, done, total: None, quantization=quantization)


def _batch(prompts: list[list[int]]) -> Batch:
    """Lay out whole prompts, each on pages of its own."""
    rows = [Row(key, 0, tuple(prompt), tuple(range(4 * key, 4 * key + 4)), None) for key, prompt in enumerate(prompts)]
    return lay_out(Decision(1, tuple(rows)), page_size=16)


def _logits(model: LoadedModel, prompts: list[list[int]], *, on_kernels: bool = True) -> torch.Tensor:
    """Return the logits (N, V) after each token of all prompts, computed in one step."""
    batch = _batch(prompts)
    store = KvStore.allocate(
        model.shape, num_pages=4 * len(prompts), page_size=16, dtype=model.dtype, device=model.device
    )
    tokens, positions = torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions)
    if on_kernels:
        packed = PackedLlama(model.shape, model.weights)
        hidden = packed.forward(tokens, positions, CpuPlan(store, batch, num_heads=model.shape.num_heads))
        return packed.logits(hidden, torch.arange(len(tokens)))
    llama = Llama(model.shape, model.weights)
    return llama.logits(llama.forward(tokens, positions, ReferencePlan(store, batch)), torch.arange(len(tokens)))


@settings(max_examples=40, deadline=None)
@given(num_rows=st.integers(1, 70), depth=st.sampled_from([32, 64, 96, 160]), width=st.sampled_from([1, 31, 32, 70]))
def test_products_of_8_bits_are_exact(num_rows: int, depth: int, width: int) -> None:
    torch.manual_seed(num_rows)
    x, matrix = torch.randn(num_rows, depth), to_int8(torch.randn(width, depth))

    codes, scales = torch.ops.lamina.quantise(x)
    product = torch.ops.lamina.product(x, pack(matrix), width)

    plain_codes, plain_scales = quantise_rows(x)
    assert torch.equal(codes.float(), plain_codes)
    assert torch.equal(scales, plain_scales)
    assert torch.equal(product, linear(x, matrix))


@settings(max_examples=40, deadline=None)
@given(num_rows=st.integers(1, 70), depth=st.sampled_from([32, 64, 96, 160]), width=st.sampled_from([1, 31, 32, 70]))
def test_products_of_4_bits_are_those_of_the_unpacked_weights(num_rows: int, depth: int, width: int) -> None:
    torch.manual_seed(num_rows)
    x, matrix = torch.randn(num_rows, depth), to_int4(torch.randn(width, depth))

    product = torch.ops.lamina.product(x, pack(matrix), width)

    wanted = linear(x, matrix)
    assert (product - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@BITS
def test_a_row_is_the_same_in_any_batch(quantization: str, num_threads: int) -> None:
    torch.manual_seed(7)
    values = torch.randn(200, 160)
    packed = pack(to_int8(values) if quantization == "int8" else to_int4(values))
    x = torch.randn(64, 160)
    before = torch.get_num_threads()
    whole = torch.ops.lamina.product(x, packed, 200)

    torch.set_num_threads(num_threads)
    try:
        for num_rows in (1, 4, 16, 33):
            for begin in range(0, 64, num_rows):
                part = torch.ops.lamina.product(x[begin : begin + num_rows], packed, 200)
                assert torch.equal(part, whole[begin : begin + num_rows])
    finally:
        torch.set_num_threads(before)


@BITS
def test_a_whole_models_logits_are_the_same_in_any_batch(even_folder: Path, quantization: str) -> None:
    model = _load(even_folder, quantization)
    prompts = [[(7 * row + 3 * at) % 97 for at in range(1 + row % 5)] for row in range(64)]
    alone = [_logits(model, [prompt]) for prompt in prompts]

    for num_rows in (4, 16, 33, 64):
        assert torch.equal(_logits(model, prompts[:num_rows]), torch.cat(alone[:num_rows]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@BITS
def test_a_whole_model_is_the_references(even_folder: Path, quantization: str, dtype: str) -> None:
    model = _load(even_folder, quantization, dtype)
    prompts = [[(5 * row + at) % 97 for at in range(20)] for row in range(3)]

    given_logits, wanted = _logits(model, prompts), _logits(model, prompts, on_kernels=False)

    assert (given_logits - wanted).abs().max() <= 0.04 * wanted.abs().max()


@BITS
def test_a_row_of_not_numbers_stays_alone(quantization: str) -> None:
    x = torch.randn(40, 64)
    x[7, 3] = torch.nan
    x[9, 5] = torch.inf
    values = torch.randn(64, 64)

    product = torch.ops.lamina.product(x, pack(to_int8(values) if quantization == "int8" else to_int4(values)), 64)

    assert torch.isfinite(product).all(dim=1).tolist() == [row not in (7, 9) for row in range(40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BITS
def test_the_kernels_pass_their_check(tiny_model: LoadedModel, dtype: torch.dtype, quantization: str) -> None:
    check_kernels(tiny_model.shape, dtype, quantization)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1])
def test_a_files_own_blocks_of_4_bits_are_kept(kind: gguf.GGMLQuantizationType) -> None:
    values = np.random.default_rng(3).normal(size=(40, 96)).astype(np.float32)
    stored = StoredTensor((40, 96), int(kind), gguf.quantize(values, kind))

    parts = stored.unpack_int4()

    assert parts is not None
    matrix = Int4Matrix(*map(torch.from_numpy, parts))
    assert torch.allclose(matrix.unpack(), torch.from_numpy(stored.unpack()), rtol=0, atol=1e-6)


def test_a_matrix_that_is_no_multiple_of_a_group_is_refused_in_4_bits(tiny_folder: Path) -> None:
    with pytest.raises(ModelUnreadable, match="48 inputs; for 4 bits they must be a multiple of 32"):
        _load(tiny_folder, "int4")


def test_every_precision_has_a_revision_of_its_own(even_folder: Path) -> None:
    models = [
        _load(even_folder, quantization, dtype)
        for dtype in ("bfloat16", "float32")
        for quantization in ("none", "int8", "int4")
    ]

    assert len({model.revision for model in models}) == len(models)
    assert models[1].revision.endswith("-bfloat16-int8")


@pytest.fixture(scope="module")
def exact(language_model: Path, smollm: LoadedModel) -> tuple[list[int], torch.Tensor]:
    """Give a text's tokens and their logprobs (N, V) by the built-in model in float32."""
    tokens: list[int] = read_gguf_vocabulary(language_model).tokenizer.encode(TEXT).ids
    with torch.inference_mode():
        return tokens, logprobs(smollm, tokens)


@pytest.mark.parametrize(
    ("quantization", "most_error", "least_agreement"),
    [
        ("none", 0.05, 0.95),  # measured: 0.017 and 1.00
        ("int8", 0.40, 0.80),  # 0.253 and 0.90
        ("int4", 0.20, 0.85),  # 0.104 and 0.93
    ],
)
@torch.inference_mode()
def test_logprobs_stay_close_to_float32(
    language_model: Path,
    exact: tuple[list[int], torch.Tensor],
    quantization: str,
    most_error: float,
    least_agreement: float,
) -> None:
    tokens, wanted = exact

    found = compare(logprobs(_load(language_model, quantization), tokens), wanted, tokens)

    assert found.likely_error <= most_error, found  # nats, over tokens with a likelihood above a hundredth
    assert found.agreement >= least_agreement, found
    assert found.perplexity <= 1.1 * compare(wanted, wanted, tokens).perplexity, found
