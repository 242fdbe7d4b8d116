"""What a function does, as a graph of kiln's operations: `kiln.fx.experimental.proxy_tensor.make_fx`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.export.graph_module import Steps
from kiln.fx import GraphModule, Node, has_side_effect
from kiln.nn import Module, Parameter
from kiln.tracing.captured import Captured, Expected, Raises
from kiln.tracing.dims import Dim
from kiln.tracing.settled import named, settled, specs_like
from kiln.tracing.trees import Tree, build, constants


def recorded(f: Callable[..., Any], args: tuple[Any, ...], open_sizes: bool) -> GraphModule:
    """What `f(*args)` does; with `open_sizes` for arguments of other sizes too, as far as it allows."""
    sizes = None
    if open_sizes:
        sizes = {name: specs_like(x, _left_open) for name, x in named(f, args, None).items()}
    made = _Recorded(settled(f, args, {}, sizes, "refuse", False))
    return GraphModule(made.root, made.graph)


def _left_open(x: Any) -> dict[int, Any]:
    """That all sizes of a tensor may vary."""
    return dict.fromkeys(range(x.ndim), Dim.AUTO)


def next_random(count: int) -> tuple[int, int]:
    """The generator's seed and position, from where so many numbers are taken."""
    return _core.next_random(count)


@has_side_effect
def expect(holds: Any, error: type[Exception], text: str) -> None:
    """Raises what an op raises where values are not as it asks."""
    if not bool(holds):
        raise error(text)


class _Recorded(Steps):
    """The steps of a captured function on placeholders, its tensors as attributes of a module."""

    def __init__(self, found: Captured) -> None:
        super().__init__(found.dims, found.shapes)
        if any(isinstance(check, Raises) for check in found.checks):
            raise NotImplementedError(f"make_fx: {found.name} may raise, depending on values")
        self.found, self.root = found, Module()
        places = self._arguments()
        operands = [places[k] for k in found.distinct]
        counts = [0, 0]
        for s in found.state:
            is_parameter = isinstance(s.tensor, Parameter)
            name = f"_{'param' if is_parameter else 'tensor'}_constant{counts[is_parameter]}"
            counts[is_parameter] += 1
            if is_parameter:
                self.root.register_parameter(name, s.tensor)
            else:
                self.root.register_buffer(name, s.tensor)
            operands.append(self.graph.get_attr(name))
        self.operands, self.homes = operands, list(operands)
        looks = [(x.dtype, x.shape) for x in found.inputs]
        looks += [(s.tensor.dtype.name, tuple(s.tensor.shape)) for s in found.state]
        self.places: dict[int, tuple[Node, int]] = {}
        for node, first, (dtype, shape) in zip(operands, found.firsts, looks):
            node.meta["val"] = self._like(dtype, shape)
            self.places.update({first + d: (node, d) for d in range(len(shape))})
        for k in sorted(found.assigned):  # what was there before stays
            operands[len(found.inputs) + k] = self.graph.call_method(
                "clone", (operands[len(found.inputs) + k],)
            )
        self.values = dict(enumerate([*operands, *(operands[k] for k in found.again), *self._drawn()]))
        for step in found.steps.steps:
            self.add(step)
        self._end()

    def _arguments(self) -> list[Node]:
        """A placeholder for each argument, and the nodes of the tensors in them, in order."""
        found: list[Node] = []
        positional = self.found.in_tree.items[0]
        for k, tree in enumerate(positional.items):
            names = self.found.parameters
            name = names[k] if k < len(names) else f"arg{k}"
            self._inside(tree, self.graph.placeholder(f"{name}_1"), found)
        return found

    def _inside(self, tree: Tree, node: Node, found: list[Node]) -> None:
        """The nodes of the tensors in a container."""
        if tree.kind == "leaf":
            found.append(node)
        for key, item in zip(tree.keys or range(len(tree.items)), tree.items):
            if item.leaves:
                take = getattr if tree.kind in ("named", "data") else operator.getitem
                self._inside(item, self.graph.call_function(take, (node, key)), found)

    def _drawn(self) -> list[Node]:
        """The random numbers of a call."""
        if not self.found.random:
            return []
        count = self._size(self.found.drawn)
        starts = self.graph.call_function(next_random, (count,))
        made = []
        for kind, n in self.found.random:
            item = self.graph.call_function(operator.getitem, (starts, 0 if kind == "seed" else 1))
            if kind != "seed" and n != 0:
                item = self.graph.call_function(operator.add, (item, self._size(n)))
            made.append(item)
        return made

    def _end(self) -> None:
        """What ops ask of values, what is written, the results in their containers."""
        found = self.found
        results = [self.values[k] for k in found.steps.results]
        for check in found.checks:
            if isinstance(check, Expected):
                self.graph.call_function(expect, (results[check.which], check.error, check.text))
        count, inputs = len(found.outputs), len(found.inputs)
        outputs = results[:count]
        for k, (kind, which) in found.same.items():
            outputs[k] = self.operands[which + (inputs if kind == "state" else 0)]
        for (kind, which), node in zip(found.mutated, results[count:]):
            self.graph.call_method("copy_", (self.homes[which + (inputs if kind == "state" else 0)], node))
        # (a size among the results is a constant of the tree)
        self.graph.output(build(constants(found.out_tree, self._size), iter(outputs)))

    def _argument(self, kind: str, x: Any) -> Any:
        return x if kind == "number" else self.values[x]

    def _place(self, slot: int) -> tuple[Node, int]:
        return self.places[slot]
