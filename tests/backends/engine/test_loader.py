from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from backends.engine.model.gguf import GgufModel
from backends.engine.model.loader import choose_device, load
from backends.engine.model.shape import ModelShape, RopeScaling
from backends.engine.model.weights import ModelUnreadable


def _load(path: Path, dtype: str = "float32") -> object:
    return load(path, dtype=dtype, device=torch.device("cpu"), progress=lambda what, done, total: None)


def _write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    drop: str = "",
    kind: str = "F32",
    window: int = 0,
    pattern: object = None,
) -> dict[str, np.ndarray]:
    """Write a Llama of one layer with 2 query heads and 1 kv head of 8; returns its tensors as written."""
    hidden, inner, vocab_size = 16, 24, 10
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    if window:
        writer.add_sliding_window(window)
    if isinstance(pattern, int):
        writer.add_uint32("llama.attention.sliding_window_pattern", pattern)
    elif isinstance(pattern, list):
        writer.add_array("llama.attention.sliding_window_pattern", pattern)
    writer.add_context_length(32)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"token {n}" for n in range(vocab_size)])
    writer.add_eos_token_id(3)
    writer.add_eot_token_id(4)
    sizes = {
        "token_embd": (vocab_size, hidden), "output_norm": (hidden,), "blk.0.attn_norm": (hidden,),
        "blk.0.attn_q": (hidden, hidden), "blk.0.attn_k": (8, hidden), "blk.0.attn_v": (8, hidden),
        "blk.0.attn_output": (hidden, hidden), "blk.0.ffn_norm": (hidden,), "blk.0.ffn_gate": (inner, hidden),
        "blk.0.ffn_up": (inner, hidden), "blk.0.ffn_down": (hidden, inner),
    }  # fmt: skip
    draw = np.random.default_rng(1)
    tensors = {f"{name}.weight": draw.random(size, dtype=np.float32) for name, size in sizes.items() if name != drop}
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float16) if kind == "F16" else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_file_gives_its_shape_and_its_tensors(tmp_path: Path) -> None:
    tensors = _write_gguf(tmp_path / "m.gguf")

    model = GgufModel(tmp_path / "m.gguf")

    assert (model.shape.vocab_size, model.shape.num_heads, model.shape.num_kv_heads) == (10, 2, 1)
    assert model.shape.eos_ids == {3, 4}
    assert model.is_tied
    assert np.array_equal(model.read("layers.0.v").numpy(), tensors["blk.0.attn_v.weight"])


@pytest.mark.parametrize(
    ("window", "pattern", "windows"), [(0, None, ()), (7, None, (7,)), (7, 1, (None,)), (7, 2, (7,))]
)
def test_a_gguf_file_says_its_windows(tmp_path: Path, window: int, pattern: object, windows: tuple[int | None]) -> None:
    _write_gguf(tmp_path / "m.gguf", window=window, pattern=pattern)

    assert GgufModel(tmp_path / "m.gguf").shape.windows == windows


def test_a_list_of_windows_in_a_gguf_file_is_refused(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "m.gguf", window=7, pattern=[True])

    with pytest.raises(ModelUnreadable, match="has a list"):
        GgufModel(tmp_path / "m.gguf")


def test_rows_of_queries_come_back_from_pairs_to_halves(tmp_path: Path) -> None:
    stored = _write_gguf(tmp_path / "m.gguf")["blk.0.attn_k.weight"]

    read = GgufModel(tmp_path / "m.gguf").read("layers.0.k").numpy()

    assert np.array_equal(read, stored[[0, 2, 4, 6, 1, 3, 5, 7]])


def test_half_precision_in_a_gguf_file_is_read(tmp_path: Path) -> None:
    tensors = _write_gguf(tmp_path / "m.gguf", kind="F16")

    read = GgufModel(tmp_path / "m.gguf").read("layers.0.up").numpy()

    assert np.array_equal(read, tensors["blk.0.ffn_up.weight"].astype(np.float16).astype(np.float32))


def test_the_built_in_model_is_read_as_what_it_is(language_model: Path) -> None:
    model = GgufModel(language_model)

    assert (model.shape.num_layers, model.shape.num_heads, model.shape.num_kv_heads) == (30, 9, 3)
    assert model.shape.head_dim == 64
    assert model.shape.rope_theta == 100_000
    assert model.shape.eos_ids == {2}
    assert model.shape.kv_bytes_per_token(2) == 23_040


@pytest.mark.parametrize("cut", [0, 3, 40, 500, -100])
def test_a_gguf_file_that_is_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    _write_gguf(tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:cut])

    with pytest.raises(ModelUnreadable, match=r"cut\.gguf is not a whole GGUF file"):
        _load(tmp_path / "cut.gguf")


def test_a_gguf_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "m.gguf", architecture="mamba")

    with pytest.raises(ModelUnreadable, match="holds a 'mamba' model; this engine runs 'llama'"):
        _load(tmp_path / "m.gguf")


def test_a_gguf_file_without_a_tensor_names_it(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "m.gguf", drop="blk.0.ffn_up")

    with pytest.raises(ModelUnreadable, match=r"no tensor blk\.0\.ffn_up\.weight"):
        _load(tmp_path / "m.gguf")


def _change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_change_config(model_type="gpt2"), "holds a 'gpt2' model"),
        (_change_config(attention_bias=True), "sets attention_bias"),
        (_change_config(hidden_act="gelu"), "uses the activation gelu"),
        (_change_config(rope_parameters={"rope_type": "yarn"}), "frequencies by 'yarn'"),
        (_change_config(intermediate_size=81), "the model says"),
        (lambda folder: (folder / "config.json").write_text("[]"), "holds no JSON object"),
        (lambda folder: (folder / "config.json").unlink(), "cannot read"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"holds no \.safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "is not a safetensors file"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(
    tiny_folder: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    damage(folder)

    with pytest.raises(ModelUnreadable, match=message):
        _load(folder)


def test_a_missing_model_and_a_missing_device_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="no model at"):
        _load(tmp_path / "nothing")
    if not torch.cuda.is_available():
        with pytest.raises(ModelUnreadable, match="device cuda was asked for and there is none"):
            choose_device("cuda")


def test_other_weights_have_another_revision(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    same = _load(folder)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)

    assert same.revision == _load(tiny_folder).revision  # type: ignore[attr-defined]
    assert same.revision != _load(folder).revision  # type: ignore[attr-defined]


def test_llama_3_slows_only_the_long_waves() -> None:
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192)
    plain = ModelShape(10, 64, 64, 1, 1, 1, 64, 1000, 1e-5, 500_000.0, None, frozenset())
    scaled = ModelShape(10, 64, 64, 1, 1, 1, 64, 1000, 1e-5, 500_000.0, scaling, frozenset())

    ratios = [a / b for a, b in zip(scaled.rope_frequencies(), plain.rope_frequencies(), strict=True)]

    assert ratios[0] == 1.0
    assert ratios[-1] == pytest.approx(1 / 8)
    assert ratios == sorted(ratios, reverse=True)
