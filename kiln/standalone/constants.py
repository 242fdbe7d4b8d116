"""The tensors of a library: those of the program as kernels read them, side by side in its data.

What is computed of constants alone is computed here, once: a transposed weight lies transposed, so that its
product reads it row by row, and small arithmetic (a normalisation's rsqrt(var + eps)) is done. It is the
interpreter that does it, whose results are those of the kernels bit for bit.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kiln import ops
from kiln._core import bfloat16
from kiln.graph.graph import Graph, Node, Value
from kiln.graph.interpret import interpret, memory_dtype
from kiln.graph.size import Size, product
from kiln.passes.rewrite import append, begun, reachable
from kiln.serialization.source import pieces
from kiln.serialization.tensor_file import named_chunks
from kiln.table.kinds import VIEWS
from kiln.tracing.captured import Captured, Check, Kept
from kiln.tracing.expand import expand

ALIGNMENT = 64  # bytes
# Elements of a result that is computed here, where that is more than its operands in another order.
SMALL = 1 << 16

Arrays = dict[int, Any]  # of the inputs of a graph that are constants: their memory, by position


def constants_of(found: Captured) -> Arrays:
    """The tensors that a program has and does not write."""
    written = {which for kind, which in found.mutated if kind == "state"}
    first = len(found.inputs)
    return {
        first + k: memory_of(own.tensor.detach()) for k, own in enumerate(found.state) if k not in written
    }


def memory_of(tensor: Any) -> Any:
    """A tensor's elements as an array of NumPy; of bfloat16 its bits."""
    data = b"".join(map(bytes, pieces(tensor)))
    return np.frombuffer(data, memory_dtype(tensor.dtype.name)).reshape(tuple(tensor.shape))


def folded(found: Captured) -> tuple[Graph, Arrays]:
    """The graph of a program in primitives, whose inputs are more constants, for what was computed of the
    program's tensors; those that nothing reads any more, nor is asked of, are not among the arrays.
    """
    graph, arrays = expand(found.graph), constants_of(found)
    derived = {id(graph.inputs[k]) for k in arrays}  # from the arrays
    constant = {*derived}  # and what is the same at every call
    kept = reachable(graph.outputs)
    worth: dict[int, Value] = {}  # of what is derived: what is computed here if something else reads it
    for node in graph.nodes:
        if id(node.out) in kept and all(id(v) in constant for v in node.inputs) and _is_static(node):
            constant.add(id(node.out))
            if any(id(v) in derived for v in node.inputs):
                derived.add(id(node.out))
                if _is_worth(node, worth):
                    worth[id(node.out)] = node.out
    read = {id(v) for node in graph.nodes if id(node.out) not in constant for v in node.inputs}
    read |= {id(v) for v in graph.outputs}
    roots = [v for v in worth.values() if id(v) in read]
    values = _computed(graph, arrays, roots)
    work, now = begun(graph)
    made: Arrays = {}
    for value, array in zip(roots, values):
        made[len(work.inputs)] = array
        now[id(value)] = work.add_input(value.dtype, value.shape)
        work.slots += value.ndim
    for node in graph.nodes:
        if id(node.out) in kept and id(node.out) not in now:
            now[id(node.out)] = append(work, node, tuple([now[id(v)] for v in node.inputs]))
    work.finish([now[id(v)] for v in graph.outputs])
    alive = reachable(work.outputs)
    work.nodes = [node for node in work.nodes if id(node.out) in alive]
    every = {**arrays, **made}
    looked_at = operands_asked(found)
    return work, {k: x for k, x in every.items() if id(work.inputs[k]) in alive or k in looked_at}


def operands_asked(found: Captured) -> set[int]:
    """The inputs of the graph whose values are asked for something, beside being computed with."""
    asked = {check.which for check in found.checks if isinstance(check, Kept) and check.kind == "operand"}
    parts = [part for check in found.checks if isinstance(check, Check) for part in check.parts]
    return asked | {which for kind, which in parts if kind == "operand"}


def _is_static(node: Node) -> bool:
    """Whether it is the same at every call, and one result."""
    return node.op.kind != "control" and not _has_size((node.attrs, node.out.shape))


def _has_size(x: Any) -> bool:
    return any(map(_has_size, x)) if isinstance(x, tuple) else isinstance(x, Size)


def _is_worth(node: Node, worth: dict[int, Value]) -> bool:
    """Whether its result is to be computed here, and not where it is read."""
    if node.op.kind in VIEWS:
        return node.op.name == "permute" or any(id(v) in worth for v in node.inputs)
    count = product(node.out.shape)
    return isinstance(count, int) and count <= SMALL


def _computed(graph: Graph, arrays: Arrays, roots: list[Value]) -> list[Any]:
    """The values of constants, each an array of its own."""
    needed = reachable(roots)
    part = Graph()
    given: list[Any] = []
    now: dict[int, Value] = {}
    for k, array in arrays.items():
        value = graph.inputs[k]
        if id(value) in needed:
            now[id(value)] = part.add_input(value.dtype, value.shape)
            given.append(array)
    for node in graph.nodes:
        if id(node.out) in needed:
            now[id(node.out)] = append(part, node, tuple([now[id(v)] for v in node.inputs]))
    part.finish([now[id(v)] for v in roots])
    return [np.ascontiguousarray(x) for x in interpret(part, given)] if roots else []


def laid_out(arrays: Arrays) -> tuple[dict[int, int], memoryview]:
    """Where each constant lies in the data, in bytes, and the data."""
    places: dict[int, int] = {}
    data = bytearray()
    for k, array in arrays.items():
        data += bytes(-len(data) % ALIGNMENT)
        places[k] = len(data)
        data += array.tobytes()
    return places, memoryview(data or bytearray(1))


def in_file(arrays: Arrays, graph: Graph, names: dict[int, str]) -> tuple[dict[int, int], bytes]:
    """The same as a safetensors file: where each constant lies in it, in bytes, and the file. `names`: of
    those that are tensors of the program.
    """
    tensors: dict[str, Any] = {}
    of: dict[str, int] = {}
    for k, array in arrays.items():
        name = names.get(k, f"computed.{k}")
        narrow = graph.inputs[k].dtype == "bfloat16"
        tensor = ops.from_numpy(np.require(array.view(np.int16) if narrow else array, requirements="W"))
        tensors[name] = tensor.view(bfloat16) if narrow else tensor
        of[name] = k
    file = b"".join(map(bytes, named_chunks(tensors, {})))
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    return {k: 8 + length + header[name]["data_offsets"][0] for name, k in of.items()}, file
