"""How many multiply-adds a call does: those of its products, counted in the graph of the function that ran.

    matmul          batch, rows and columns of the result, times what is summed
    convolution     images, places of the smaller side, times the elements of the weight: padding counts
    attention       scores and sums; backward the scores again and four products; what masks hide counts
    recurrence      the state's product with its weight in every step

Everything else (pointwise work, reductions, tables that are looked into) counts as none, as in
`torch.utils.flop_counter`. An operation of theirs is half a multiply-add: two of them are one.
"""

from __future__ import annotations

from math import prod
from typing import Any

from kiln import _core
from kiln.capture.function import Derivative, Forward, Function
from kiln.capture.handle import Handle
from kiln.capture.make import function_of
from kiln.graph.graph import Graph, Node
from kiln.graph.size import Dim, evaluate, product

# of what was counted, as polynomials over the operands' sizes: (handle, how operands look) -> dims to add
_counted: dict[tuple[Handle, tuple[Any, ...]], list[Dim]] = {}


def multiply_adds(handle: Handle, operands: tuple[Any, ...]) -> int:
    """Those of a call of a function with these tensors and numbers."""
    looks = tuple(map(_look, operands))
    dims = _counted.get((handle, looks))
    if dims is None:
        function = function_of(handle)
        if _convolution(function) is not None:
            return _convolved(function, operands)
        dims = _counted[handle, looks] = _products(function.graph(looks))
    if not dims:
        return 0
    slots: list[int] = []
    for x in operands:
        slots += tuple(x.shape) if isinstance(x, _core.Tensor) else [int(x) if isinstance(x, int) else 0]
    return sum(evaluate(dim, slots.__getitem__) for dim in dims)


def _look(x: Any) -> Any:
    """An operand as `kiln.capture.function` describes it, contiguous."""
    if isinstance(x, _core.Tensor):
        return str(x.dtype).rpartition(".")[2], tuple(int(size == 1) for size in x.shape), None
    return "b" if isinstance(x, bool) else "i" if isinstance(x, int) else "f"


def _products(graph: Graph) -> list[Dim]:
    found: list[Dim] = []
    done: set[Any] = set()  # a node has one result: some come from one piece of work
    for node in graph.nodes:
        if node.op.kind == "matmul":
            found.append(product(node.out.shape) * node.inputs[0].shape[-1])
        elif node.op.kind == "layer":
            for what, dim in _layer(node):
                key = (what, tuple(map(id, node.inputs)))
                if key not in done:
                    done.add(key)
                    found.append(dim)
    return found


def _layer(node: Node) -> list[tuple[str, Dim]]:
    """The products of a layer's node, by name: those of one name and of the same inputs are one."""
    shapes = [value.shape for value in node.inputs]
    if node.op.algorithm == "recurrence":  # gates [T, N, G * H], weight, states [N, H]
        return [("steps", product(shapes[0]) * shapes[2][-1])]
    if node.op.algorithm != "attention":
        return []
    backward = node.op.name != "attend"
    query, key, value = shapes[1:4] if backward else shapes[:3]  # [N, L, H, R, E] [N, S, H, E] [N, S, H, V]
    scores = product(query) * key[1]
    sums = product(query[:-1]) * value[-1] * key[1]
    if not backward:
        return [("scores", scores), ("sums", sums)]
    own = ("value", sums) if node.op.name.endswith("value") else (node.op.name, scores)
    return [("scores", scores), ("of sums", sums), own]


def _convolution(function: Function) -> str | None:
    """Which convolution a function is, or the derivative of which."""
    forward = function.forward if isinstance(function, Derivative) else function
    name = forward.op.name if isinstance(forward, Forward) else ""
    return name if name in ("convolve", "convolve_input", "convolve_weight") else None


def _convolved(function: Function, operands: tuple[Any, ...]) -> int:
    """Of a convolution or of its gradients, each of which is as many as the convolution.

    convolve(x, weight) -> y; convolve_input(y, weight) -> x; convolve_weight(y, x) -> weight
    """
    name = _convolution(function)
    shapes: dict[str, tuple[int, ...]] = {}
    of = {
        "convolve": ("x", "weight", "bias", "y"),
        "convolve_input": ("y", "weight", "bias", "x"),
        "convolve_weight": ("y", "x", "", "weight"),
    }[name or ""]
    times = 1
    forward = function.forward if isinstance(function, Derivative) else function
    if isinstance(function, Derivative):
        times = sum(of[target] not in ("", "bias") for target, _ in function.targets)
        for (kind, k), operand in zip(function.sources, operands):
            if isinstance(operand, _core.Tensor) and kind in ("input", "shape", "grad", "output"):
                shapes[of[3] if kind in ("grad", "output") else of[k]] = tuple(operand.shape)
    else:
        for k, operand in enumerate(operands[:2]):
            shapes[of[k]] = tuple(operand.shape)
    assert isinstance(forward, Forward)
    kernel, stride, padding, dilation, groups = forward.structure[-5:]
    if "y" not in shapes:
        places = [
            (size + 2 * p - r * (k - 1) - 1) // s + 1
            for size, k, s, p, r in zip(shapes["x"][2:], kernel, stride, padding, dilation)
        ]
        shapes["y"] = (shapes["x"][0], shapes["weight"][0], *places)
    channels = shapes["weight"][1] if "weight" in shapes else shapes["x"][1] // groups[0]
    return times * int(prod(shapes["y"])) * channels * int(prod(kernel))
