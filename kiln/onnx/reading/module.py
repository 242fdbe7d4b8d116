"""A model as a module that runs its nodes, one after the other.

`forward` is what `kiln.onnx.load` follows to make a program of it. Called by itself it runs on tensors as
they are, so that also shapes may go by values, and branches and loops are Python's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from kiln import _core
from kiln.nn import Module, Parameter
from kiln.onnx.reading import branching
from kiln.onnx.reading.known import Known, number, numbers, on_numbers
from kiln.onnx.reading.models import Function, Graph, Input, Model, Node, Reference
from kiln.onnx.reading.operators import BY_VALUE, Operator, called, found, unsigned
from kiln.onnx.reading.refusal import WRONG, LoadError, UnsupportedError, identifier
from kiln.onnx.reading.weights import Unsigned

# Operators whose results have shapes that go by values, or that read values where they compute.
BY_VALUES = {"Compress", "Det", "NonMaxSuppression", "NonZero", "Range", "Unique"}
DEEPEST = 40  # calls of functions in functions


class Part(Module):
    """What holds the tensors whose names begin alike."""


class ONNXModule(Module):
    """A model as a module. Its weights have the names they have in the file, floats are parameters."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self.followed = False  # whether a program is being made of it
        self._held: dict[int, dict[str, Any]] = {}  # of each graph: its tensors, where they are
        for graph in graphs_of(model):
            self._held[id(graph)] = {name: self._kept(name, x) for name, x in graph.tensors.items()}

    def _kept(self, name: str, value: Any) -> tuple[Any, Module, str]:
        """Puts a tensor into the module: the numbers it has, the part that holds it, and its name there."""
        array = value.array() if isinstance(value, Known) else value
        if isinstance(value, Unsigned):
            array = value.array
        module: Module = self
        *path, key = [re.sub(r"[^0-9A-Za-z_]", "_", part) or "_" for part in name.split(".")] or ["_"]
        for part in path:
            inner = module._modules.get(part)
            if inner is None:
                part = _free(module, part)
                inner = module._modules[part] = Part()
            module = inner
        key = _free(module, key)
        if array.dtype.is_floating_point:
            module.register_parameter(key, Parameter(array))
        else:
            module.register_buffer(key, array)
        return (value if isinstance(value, (Known, Unsigned)) else None), module, key

    @property
    def forward(self) -> Any:  # type: ignore[override]
        """The model of its inputs, which have their names as parameters."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._run(*signature.bind(*args, **kwargs).args)

        forward.__signature__ = signature = signature_of(self._model.graph.inputs)  # type: ignore[attr-defined]
        return forward

    def _run(self, *inputs: Any) -> Any:
        graph = self._model.graph
        run = Run(self, self._model.versions)
        scope = {x.name: value for x, value in zip(graph.inputs, inputs)}
        results = [branching.arrays(x) for x in run.graph(graph, scope)]
        return results[0] if len(results) == 1 else tuple(results)

    def tensors(self, graph: Graph) -> dict[str, Any]:
        """The tensors of a graph by their names in it."""
        values: dict[str, Any] = {}
        for name, (known, module, key) in self._held[id(graph)].items():
            array = getattr(module, key)
            if isinstance(known, Known):
                values[name] = Known(known.dtype, known.items, known.is_list, array)
            else:
                values[name] = array if known is None else Unsigned(known.dtype, array)
        return values


def signature_of(inputs: Sequence[Input]) -> inspect.Signature:
    """Parameters that have the names of a model's inputs."""
    names: list[str] = []
    for x in inputs:
        name = identifier(x.name)
        while name in names:
            name += "_"
        names.append(name)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def _free(module: Module, key: str) -> str:
    """A name that a module has nothing under."""
    while hasattr(module, key):
        key += "_"
    return key


def graphs_of(model: Model) -> list[Graph]:
    """Every graph of a model, those in attributes of nodes included."""
    todo: list[Any] = [model.graph]
    found: list[Graph] = []
    functions = [node for f in model.functions.values() for node in f.nodes]
    todo += [a for node in functions for a in node.attributes.values() if isinstance(a, Graph)]
    while todo:
        graph = todo.pop(0)
        found.append(graph)
        todo += [a for n in graph.nodes for a in n.attributes.values() if isinstance(a, Graph)]
    return found


class Run:
    """One run of graphs, with the versions of the operators that they use."""

    def __init__(self, module: ONNXModule, versions: dict[str, int], depth: int = 0) -> None:
        self.module, self.versions, self.depth = module, versions, depth

    def graph(self, graph: Graph, scope: dict[str, Any]) -> list[Any]:
        """The outputs of a graph, of what it sees by name."""
        values = {**scope, **self.module.tensors(graph)}
        for node in graph.nodes:
            self.node(node, values, {})
        return [values[name] for name in graph.outputs]

    def node(self, node: Node, values: dict[str, Any], arguments: dict[str, Any]) -> None:
        """Runs a node: what it gives is put into `values`. LoadError, which names it, for what goes wrong."""
        try:
            given = [values[name] if name else None for name in node.inputs]
            results = self._results(node, given, _settled(node.attributes, arguments), values)
        except LoadError as error:
            if str(error).startswith("node "):
                raise
            raise type(error)(f"{node.where}: {error}") from error
        except WRONG as error:
            raise LoadError(f"{node.where}: {error}") from error
        if not isinstance(results, tuple):
            results = (results,)
        if len(results) < len(node.outputs):
            extra = [name for name in node.outputs[len(results) :] if name]
            if extra:
                raise UnsupportedError(
                    f"{node.where}: kiln has not its result {len(results)}, {extra[0]!r:.80}"
                )
        values.update((name, x) for name, x in zip(node.outputs, results) if name)

    def _results(
        self, node: Node, given: list[Any], attributes: dict[str, Any], values: dict[str, Any]
    ) -> Any:
        kind, version = node.kind, self.versions.get(node.domain)
        function = self.module._model.functions.get((node.domain, kind))
        if function is not None:
            return self._function(function, given, attributes)
        if version is None:
            raise LoadError(f"the model does not say which version of {node.domain or 'ai.onnx'} it uses")
        if node.domain == "" and kind in branching.CONTROL:
            return branching.CONTROL[kind](self, values, given, len(node.outputs), **attributes)
        if node.domain == "":
            known = _of_sizes(kind, given, attributes, len(node.outputs))
            if known is not None:
                return known
            made = unsigned(kind, given, attributes, version, len(node.outputs))
            if made is not None:
                return made
        op = found(kind, node.domain, version)
        if op is None:
            named = f"{node.domain}.{kind}" if node.domain else kind
            raise UnsupportedError(f"kiln has not the operator {named:.80}")
        if self.module.followed:
            _check_known(kind, op, given)
        return called(op, given, attributes, version, len(node.outputs))

    def _function(
        self, function: Function, given: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Any, ...]:
        """A call of an operator that the model defines."""
        if self.depth >= DEEPEST:
            raise LoadError(f"functions call functions more than {DEEPEST} deep")
        unknown = set(attributes) - set(function.attributes)
        if unknown:
            raise LoadError(f"its function has no attribute {min(unknown)!r:.80}")
        inner = Run(self.module, function.versions, self.depth + 1)
        values = dict.fromkeys(function.inputs)
        values.update(zip(function.inputs, given))
        for node in function.nodes:
            inner.node(node, values, {**function.attributes, **attributes})
        return tuple([values[name] for name in function.outputs])


def _check_known(kind: str, op: Operator, given: Sequence[Any]) -> None:
    """UnsupportedError where an operator goes by numbers and is given a tensor without values yet."""
    for k, value in enumerate(given):
        form = op.takes[k] if k < len(op.takes) else op.rest
        if (form in BY_VALUE or kind in BY_VALUES) and isinstance(value, _core.Tensor):
            raise UnsupportedError(
                f"its input {k} goes by values of tensors, of which no program is made; say what it is by "
                "`values` where it is an input of the model, or run the model as kiln.onnx.read gives it"
            )


def _settled(attributes: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Attributes, those that are arguments of the function by their values."""
    found = {k: arguments.get(v.name) if isinstance(v, Reference) else v for k, v in attributes.items()}
    return {k: v for k, v in found.items() if v is not None}


def _of_sizes(kind: str, given: Sequence[Any], attributes: dict[str, Any], outputs: int) -> Any:
    """What is known without computing: sizes of tensors, operators of numbers."""
    if kind in ("Shape", "Size") and len(given) == 1 and isinstance(given[0], _core.Tensor):
        shape = tuple(given[0].shape)
        if kind == "Shape":
            unknown = set(attributes) - {"start", "end"}
            return None if unknown else numbers(shape[attributes.get("start", 0) : attributes.get("end")])
        total: Any = 1
        for n in shape:
            total = total * n
        return number(total)
    extra = {"outputs": outputs} if kind == "Split" else {}
    return on_numbers(kind, given, {**attributes, **extra})
