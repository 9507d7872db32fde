from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from cache.quantise import quantise

_WIDTH = 16


@pytest.fixture
def weights() -> list[NDArray[np.float32]]:
    random = np.random.default_rng(0)
    return [random.normal(size=(_WIDTH, width)).astype(np.float32) for width in (8, 24)]


@pytest.fixture
def graph(tmp_path: Path, weights: list[NDArray[np.float32]]) -> Path:
    """Write a graph of two products of one activation."""
    nodes = [helper.make_node("MatMul", ["x", f"w{place}"], [f"y{place}"]) for place in range(2)]
    made = helper.make_graph(
        nodes,
        "two products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, _WIDTH])],
        [
            helper.make_tensor_value_info(f"y{place}", TensorProto.FLOAT, [None, None, weight.shape[1]])
            for place, weight in enumerate(weights)
        ],
        [numpy_helper.from_array(weight, f"w{place}") for place, weight in enumerate(weights)],
    )
    path = tmp_path / "plain.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def run(path: Path, activation: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": activation})  # type: ignore[no-any-return]  # the library has no annotation there


def test_products_of_one_activation_become_one_with_the_same_results(
    graph: Path, tmp_path: Path, weights: list[NDArray[np.float32]]
) -> None:
    activation = np.random.default_rng(1).normal(size=(2, 5, _WIDTH)).astype(np.float32)

    count = quantise(graph, tmp_path / "small.onnx")
    found = run(tmp_path / "small.onnx", activation)

    products = [node for node in onnx.load(str(tmp_path / "small.onnx")).graph.node if "MatMul" in node.op_type]
    assert (count, len(products)) == (2, 1)
    for result, weight in zip(found, weights, strict=True):
        assert np.abs(result - activation @ weight).max() < 0.03 * np.abs(activation @ weight).max()


def test_a_row_of_zeros_gives_zeros_and_leaves_the_others_alone(graph: Path, tmp_path: Path) -> None:
    activation = np.random.default_rng(2).normal(size=(1, 3, _WIDTH)).astype(np.float32)
    quantise(graph, tmp_path / "small.onnx")
    before = run(tmp_path / "small.onnx", activation)
    activation[0, 1] = 0.0

    found = run(tmp_path / "small.onnx", activation)

    for result, earlier in zip(found, before, strict=True):
        assert not result[0, 1].any()
        assert np.array_equal(result[0, [0, 2]], earlier[0, [0, 2]])
