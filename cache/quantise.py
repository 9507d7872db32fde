"""Eight bits for an exported encoder, one scale per token, so that a vector does not depend on its batch.

onnxruntime's own dynamic quantisation takes one scale for a whole activation tensor: the same text, alone and in a
batch of others, came out at cosine 0.990 with itself, and paraphrases fell below the default bar. One scale per row
(token) keeps the batch out of the vector and halves the error; it takes four operations more a product.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_LEVELS = 127.0
_BEYOND_ONNX = "com.microsoft"


def quantise(source: Path, target: Path) -> int:
    """Write `source` with every matrix product by a constant in 8 bits; returns how many those were."""
    model = onnx.load(str(source))
    rewriter = _Rewriter(model.graph)
    nodes = [new for node in model.graph.node for new in rewriter.rewrite(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    rewriter.drop_replaced()
    if all(opset.domain != _BEYOND_ONNX for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_BEYOND_ONNX, 1))
    onnx.checker.check_model(model)
    onnx.save(model, str(target))
    return rewriter.num_replaced


class _Rewriter:
    """Rewrites the nodes of one graph, in their order. Products of the same activation become one, and are split."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._constants = {constant.name: constant for constant in graph.initializer}
        self._products: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            if self._is_product(node):
                self._products.setdefault(node.input[0], []).append(node)
        self._add("lamina_unit", np.array(1.0 / _LEVELS, np.float32))
        self._add("lamina_zero_point", np.array(128, np.uint8))
        self.num_replaced = 0

    def rewrite(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return what stands for `node`: itself, or an integer product with its scales; none for one done already."""
        if not self._is_product(node):
            return [node]
        together = self._products[node.input[0]]
        if node is not together[0]:
            return []
        self.num_replaced += len(together)
        activation, name = node.input[0], f"{node.output[0]}_product"
        outs = [product.output[0] for product in together]
        whole = outs[0] if len(outs) == 1 else f"{name}_whole"
        widths = self._quantise_weights(name, [product.input[1] for product in together])
        steps = [
            *_quantise_activation(activation),
            helper.make_node(
                "MatMulIntegerToFloat",
                [f"{activation}_q", f"{name}_q", "lamina_unit", f"{name}_scale", "lamina_zero_point"],
                [f"{name}_of_units"],
                domain=_BEYOND_ONNX,
            ),
            helper.make_node("Mul", [f"{name}_of_units", f"{activation}_largest"], [whole]),
        ]
        if len(outs) > 1:
            self._add(f"{name}_widths", np.array(widths, np.int64))
            steps.append(helper.make_node("Split", [whole, f"{name}_widths"], outs, axis=-1))
        return steps

    def drop_replaced(self) -> None:
        """Forget the constants that nothing reads any more."""
        read = {name for node in self._graph.node for name in node.input}
        kept = [constant for constant in self._graph.initializer if constant.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    def _is_product(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "MatMul" and node.input[1] in self._constants

    def _quantise_weights(self, name: str, weights: list[str]) -> list[int]:
        """Keep the weights side by side in 8 bits, one scale per column; returns how wide each was."""
        each = [numpy_helper.to_array(self._constants[weight]) for weight in weights]  # (in, out)
        side_by_side: NDArray[np.float32] = np.concatenate(each, axis=1)
        scale = np.maximum(np.abs(side_by_side).max(axis=0) / _LEVELS, 1e-12)
        self._add(f"{name}_q", np.rint(side_by_side / scale).astype(np.int8))
        self._add(f"{name}_scale", scale.astype(np.float32))
        return [weight.shape[1] for weight in each]

    def _add(self, name: str, values: NDArray[np.generic]) -> None:
        self._graph.initializer.append(numpy_helper.from_array(values, name))


def _quantise_activation(name: str) -> list[onnx.NodeProto]:
    """Bring `name` to uint8 around 128, each row in units of its largest number.

    A row of zeros is divided by zero; whatever that is in 8 bits, the product is multiplied by the largest, zero.
    """
    return [
        helper.make_node("Abs", [name], [f"{name}_abs"]),
        helper.make_node("ReduceMax", [f"{name}_abs"], [f"{name}_largest"], axes=[-1], keepdims=1),
        helper.make_node("Div", [name, f"{name}_largest"], [f"{name}_units"]),
        helper.make_node("QuantizeLinear", [f"{name}_units", "lamina_unit", "lamina_zero_point"], [f"{name}_q"]),
    ]
