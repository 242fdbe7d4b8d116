"""`kiln.graph.Graph`: a computation that was defined, as a value: looked at, changed, differentiated, run."""

from __future__ import annotations

import difflib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kiln import _core
from kiln.errors import describe, message
from kiln.export import files
from kiln.export.program import ExportedProgram
from kiln.export.reading import check_places
from kiln.graph import graph as ir
from kiln.graph.text import TextError
from kiln.graph.verify import verify
from kiln.nn import Module
from kiln.ops.creation.data import tensor
from kiln.symbolic import derived
from kiln.symbolic.memory import Memory, memory_of
from kiln.symbolic.pictures import drawn
from kiln.symbolic.taken import Origin, is_node, take, value_of
from kiln.symbolic.text import literal, read, readable, size_text
from kiln.table.kinds import FLOATS
from kiln.tracing.capture import capture
from kiln.tracing.captured import Captured
from kiln.tracing.compare import compare
from kiln.tracing.dims import Dim
from kiln.tracing.parameters import parameter_names
from kiln.tracing.program import Home, Program, held_in
from kiln.tracing.trees import LEAF, Tree, build, flatten

Tensor = _core.Tensor


class Node(NamedTuple):
    """One op of a graph: its name in the graph's text, what it computes, of what, where it was made."""

    name: str
    op: str
    inputs: tuple[str, ...]
    dtype: str
    shape: tuple[str, ...]
    line: str

    def __repr__(self) -> str:
        return f"{self.name} = {self.op}({', '.join(self.inputs)}): {self.dtype}[{', '.join(self.shape)}]"


class Graph:
    """The computation from some nodes to others: `inputs` a node, a list of nodes or a dict of names and
    nodes; `outputs` a node, or lists, tuples and dicts of nodes. Inputs are placeholders or any other
    nodes; what they are made of is then no part of the graph.

    `g(x, y)` runs it on tensors, any number of times, and gives tensors in the containers of `outputs`,
    with the bits that the same ops give one by one; gradients flow. Dtypes and sizes are checked against what
    was declared. `str(g)` is its text, which `kiln.graph.parse` reads. Tensors of the program that nodes
    were computed with are the graph's constants: it keeps them, and does not copy them.

    ValueError where the outputs depend on a placeholder that is no input; TypeError for what is no node.

    >>> import kiln
    >>> x = kiln.graph.placeholder("x", ("n",))
    >>> g = kiln.graph.Graph(x, x * x + 3 * x + 1)
    >>> g(kiln.tensor([0.0, 1.0, 2.0]))
    tensor([ 1.,  5., 11.])
    >>> print(g.gradient())  # 3 + x + x
    graph graph_gradient
      input x: float32[n]
      %1 = add(3.0, x): float32[n]
      %2 = add(%1, x): float32[n]
      return %2
    """

    @_core.Function
    def __init__(self, inputs: Any, outputs: Any, name: str = "graph") -> None:
        if isinstance(inputs, Mapping):
            given = list(inputs.items())
        else:
            given = [(None, x) for x in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        for label, _ in given:
            if label is not None and not (isinstance(label, str) and label.isidentifier()):
                raise ValueError(message("Graph", "names as variables have", repr(label)))
        found, origin = take(name, given, outputs)
        leaves: list[Any] = []
        flatten(outputs, leaves)
        self._begin(found, None, origin, [value_of(x) for x in leaves])

    def _begin(
        self,
        found: Captured,
        homes: list[Home] | None,
        origin: Origin | None = None,
        results: Sequence[int] = (),
    ) -> None:
        self._origin, self._results = origin, list(results)
        self._raw: ir.Graph | None = None
        self._found = found
        self._homes = held_in(found) if homes is None else homes
        self._program: Program | None = Program(found, self._homes)
        self._why = ""  # it cannot run
        self._model: Callable[[], Any] = lambda: None  # the module it was made of, while that lives
        self._parts: dict[tuple[Any, ...], Graph] = {}
        self.before: Graph | None = None  # what a pass made it of
        self.made_by = ""  # the pass

    @classmethod
    def _of(cls, found: Captured, homes: list[Home] | None = None) -> Graph:
        made = cls.__new__(cls)
        made._begin(found, homes)
        return made

    def _state(self) -> list[Any]:
        """The tensors it has, as they are now."""
        return [held[key] for held, key in self._homes]

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What it is called."""
        return self._found.name

    @property
    def raw(self) -> ir.Graph:
        """The graph as passes take it: kiln/graph/graph.py."""
        if self._raw is None:
            self._raw = self._found.graph
        return self._raw

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[Any, ...]]]:
        """The dtype and the sizes of what a run is given, by name; a size that varies is a text."""
        return {x.name: (x.dtype, self._sizes(x.shape)) for x in self._found.inputs}

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[Any, ...]]]:
        """The same of what a run gives."""
        values = self.raw.outputs
        return {n: (v.dtype, self._sizes(v.shape)) for n, v in zip(self._found.outputs, values)}

    @property
    def state(self) -> dict[str, Any]:
        """The tensors that it has: parameters, buffers, constants."""
        return dict(zip([s.name for s in self._found.state], self._state()))

    @property
    def nodes(self) -> list[Node]:
        """The ops in an order that runs."""
        names = self._names()
        found = []
        for node in self.raw.nodes:
            if id(node.out) in names and node.op.kind != "constant":
                inputs = tuple([names.get(id(v)) or literal(v) for v in node.inputs])
                shape = tuple(map(str, self._sizes(node.out.shape)))
                found.append(
                    Node(names[id(node.out)], node.op.name, inputs, node.out.dtype, shape, node.line)
                )
        return found

    def _sizes(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([n if isinstance(n, int) else size_text(self._found, n) for n in shape])

    def _names(self) -> dict[int, str]:
        return readable(self._found, self.raw).names

    def __str__(self) -> str:
        return readable(self._found, self.raw, True).text

    def __repr__(self) -> str:
        given = ", ".join(self._found.inputs[k].name for k in range(len(self._found.inputs)))
        count = len(self.nodes)
        return f"<Graph {self.name}({given}) of {count} {'node' if count == 1 else 'nodes'}>"

    def verify(self) -> Graph:
        """Itself, if all rules of graphs hold (kiln/graph/verify.py); AssertionError that names the node."""
        verify(self.raw)
        return self

    # -- running --------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._runs()(args, kwargs)

    def _runs(self) -> Program:
        if self._program is None:
            raise RuntimeError(
                f"Graph: after the pass {self.made_by!r} it is to look at, not to run: {self._why}"
            )
        return self._program

    def run(self, feeds: Mapping[Any, Any] | None = None, fetch: Any = None) -> Any:
        """What the outputs are, or the nodes in `fetch`, where the inputs are `feeds`: tensors, arrays or
        numbers, by name or by placeholder.

        `fetch`: a node, or a list of nodes: those of the program that were made of this graph's inputs, or
        names of the graph's text, "%3". Only what they need is computed, and must be fed. KeyError for a name
        that is no input, ValueError for an input that is missing.

        >>> import kiln
        >>> x, y = kiln.graph.placeholder("x", (2,)), kiln.graph.placeholder("y", (2,))
        >>> double = 2 * x
        >>> g = kiln.graph.Graph([x, y], double + y)
        >>> g.run({"x": [1.0, 2.0], "y": [0.0, 5.0]})
        tensor([2., 9.])
        >>> g.run({"x": [1.0, 2.0]}, fetch=double)
        tensor([2., 4.])
        """
        if isinstance(fetch, (list, tuple)) and len({is_node(x) for x in fetch}) > 1:
            return [self.run(feeds, fetch=x) for x in fetch]
        names = [self._input_name(k) for k in feeds or {}]
        held = dict(zip(names, (feeds or {}).values()))
        graph = self if fetch is None else self._part(fetch)
        own = graph._found.inputs
        missing = [x.name for x in own if x.name not in held]
        if missing:
            raise ValueError(f"Graph.run: nothing is given for the input {missing[0]!r}")
        result = graph(*[_fed(held[x.name], x) for x in own])
        if fetch is None:
            return result
        return list(result) if isinstance(fetch, (list, tuple)) else result[0]

    def _input_name(self, key: Any) -> str:
        names = [x.name for x in self._found.inputs]
        if is_node(key) and self._origin is not None:
            value = value_of(key)
            same = key.recorder is self._origin.definition() and value in self._origin.inputs
            key = names[self._origin.inputs.index(value)] if same else "that node"
        if not isinstance(key, str) or key not in names:
            raise KeyError(f"Graph.run: no input is called {key!r}; there are {', '.join(names) or 'none'}")
        return key

    def _part(self, fetch: Any) -> Graph:
        """What computes some nodes, from no more inputs than they need."""
        wanted = list(fetch) if isinstance(fetch, (list, tuple)) else [fetch]
        key = tuple([x if isinstance(x, str) else value_of(x) if is_node(x) else -1 for x in wanted])
        if key in self._parts:
            return self._parts[key]
        if all(map(is_node, wanted)) and wanted:
            if self._origin is None:
                raise ValueError('Graph.run: nodes of a graph that a pass made are fetched by name, "%3"')
            base = self._origin.take(wanted)
            raw, values = base.graph, derived.kept_outputs(base)
        else:
            base, raw, values = self._found, self.raw, [self._value(x) for x in wanted]
        found = derived.part(base, raw, values)
        made = self._parts[key] = Graph._of(
            found, self._homes_by_name(found) if base is self._found else None
        )
        return made

    def _homes_by_name(self, part: Captured) -> list[Home]:
        """Where the tensors of a part are."""
        names = [s.name for s in self._found.state]
        return [self._homes[names.index(s.name)] for s in part.state]

    def _value(self, name: Any) -> ir.Value:
        names = {
            told: v
            for v in (*self.raw.inputs, *(n.out for n in self.raw.nodes))
            for told in [self._names().get(id(v))]
        }
        if name not in names or not isinstance(name, str):
            raise KeyError(
                f"Graph.run: there is no node {describe(name) if not isinstance(name, str) else name!r}"
            )
        return names[name]

    # -- graphs made of it ----------------------------------------------------------------------------------

    def apply(self, name: str) -> Graph:
        """The graph after a pass, which has the same inputs and outputs and gives the same bits: "simplify",
        "expand", "literals", "cse", "dce", "narrow", "prepare". Its `before` is this graph, `changes()`
        says what is different. ValueError for another name.

        >>> import kiln
        >>> x = kiln.graph.placeholder("x", (3,))
        >>> g = kiln.graph.Graph(x, x.exp() * x.exp() * 1.0)
        >>> print(g.apply("simplify"))
        graph
          input x: float32[3]
          %1 = exp(x): float32[3]
          %2 = mul(%1, %1): float32[3]
          return %2
        """
        count = len(self._found.outputs) + len(self._found.mutated)
        plain = derived.cut(self.raw, self.raw.outputs[:count])
        return self._derived(derived.run_pass(name, plain), name)

    def _derived(self, graph: ir.Graph, name: str) -> Graph:
        base = self._found
        why = ""
        try:
            found = derived.restored(base, graph, base.out_tree, base.outputs)
        except (TextError, AttributeError, KeyError) as error:
            found, why = derived.shown(base, graph), str(error)
        made = Graph._of(found, self._homes)
        if why:
            made._program, made._why = None, why
        made.before, made.made_by = self, name
        return made

    def simplify(self) -> Graph:
        """Fewer nodes, the same bits: `apply("simplify")`."""
        return self.apply("simplify")

    def expand(self) -> Graph:
        """Composites (softmax, linear, ...) as what they are made of: `apply("expand")`."""
        return self.apply("expand")

    @staticmethod
    def passes() -> dict[str, str]:
        """What `apply` takes, and what each does."""
        return {name: told for name, (_, told) in derived.PASSES.items()}

    def changes(self) -> str:
        """The text of the graph that a pass made this one of, and of this one, line by line: "-" what went,
        "+" what came; "" of a graph that no pass made.
        """
        if self.before is None:
            return ""
        a, b = (readable(g._found, g.raw).text.splitlines() for g in (self.before, self))
        told = difflib.unified_diff(a, b, f"before {self.made_by}", f"after {self.made_by}", lineterm="", n=1)
        return "\n".join(told)

    def gradient(self, y: Any = None, wrt: Any = None) -> Graph:
        """The graph of the gradients of `y` (of its sum, if it is more than one element) for `wrt`, with
        the inputs of this one and the bits that backward gives.

        `y`: an output, by its node or name; not needed if there is one. `wrt`: an input or a tensor that the
        graph has, by node or name, or a list of them; without, the inputs of float dtypes. The result is in
        the same form: one gradient, or a tuple. What `y` does not depend on gets zeros.

        >>> import kiln
        >>> x = kiln.graph.placeholder("x", (2,))
        >>> kiln.graph.Graph(x, x.sin()).gradient()(kiln.zeros(2))
        tensor([1., 1.])
        """
        base = self._found
        k = self._output(y)
        several = isinstance(wrt, (list, tuple))
        names = [x.name for x in base.inputs] + [s.name for s in base.state]
        if wrt is None:
            found = [j for j, x in enumerate(base.inputs) if x.dtype in FLOATS]
            several = len(found) != 1
            if not found:
                raise ValueError("Graph.gradient: no input has a float dtype")
        else:
            found = [self._operand(x, names) for x in (wrt if several else [wrt])]
        graph = derived.gradient(base, k, found)
        outputs = [f"d {base.outputs[k]}/d {names[j]}" for j in found]
        tree = Tree("tuple", (LEAF,) * len(found)) if several else LEAF
        made = Graph._of(derived.restored(base, graph, tree, outputs, f"{base.name}_gradient"), self._homes)
        made.before, made.made_by = self, "gradient"
        return made

    def _output(self, y: Any) -> int:
        names = self._found.outputs
        if y is None and len(names) == 1:
            return 0
        if isinstance(y, str) and y in names:
            return names.index(y)
        if is_node(y) and self._origin is not None and value_of(y) in self._results:
            return self._results.index(value_of(y))
        if isinstance(y, int) and not isinstance(y, bool) and 0 <= y < len(names):
            return y
        told = "it has several outputs: say of which" if y is None else "it is not an output of the graph"
        raise ValueError(f"Graph.gradient: {told} ({', '.join(names)})")

    def _operand(self, x: Any, names: list[str]) -> int:
        if is_node(x) and self._origin is not None and value_of(x) in self._origin.inputs:
            k = self._origin.inputs.index(value_of(x))
        elif isinstance(x, str) and x.removeprefix("$") in names:
            k = names.index(x.removeprefix("$"))
        elif isinstance(x, Tensor) and not is_node(x) and any(x is t for t in self._state()):
            k = len(self._found.inputs) + next(j for j, t in enumerate(self._state()) if t is x)
        else:
            raise ValueError(f"Graph.gradient: {describe(x)} is no input of the graph ({', '.join(names)})")
        dtype = [v.dtype for v in self.raw.inputs][k]
        if dtype not in FLOATS:
            raise ValueError(f"Graph.gradient: {names[k]} is {dtype}, which has no gradient")
        return k

    # -- memory, pictures, files ----------------------------------------------------------------------------

    def plan(self, **sizes: int) -> Memory:
        """The kernels that a run has and the memory they need, with and without reuse; `sizes`: of those
        that vary, by name. It prints as a table and shows itself as a picture in a notebook.
        """
        return memory_of(self._found, sizes)

    def draw(self, path: str | os.PathLike[str] | None = None, depth: int | None = None) -> Any:
        """A picture: inputs at the top, outputs at the bottom, modules as boxes that open in a page.
        Written to `path`, if given: .svg, .html or .dot. `depth`: draws modules that lie so deep as one box
        each.
        """
        made = drawn(self._found, self.raw, depth, repr(self), self._model())
        if path is not None:
            made.save(path)
        return made

    def _repr_svg_(self) -> str:
        return str(self.draw().svg)

    def _repr_html_(self) -> str | None:
        return self.draw()._repr_html_()  # type: ignore[no-any-return]

    def save(self, path: Any) -> None:
        """Writes it into one file with the tensors it has: a program's file (`kiln.export`), which
        `kiln.graph.load` reads, as `kiln.export.load` does.
        """
        files.save(self.program(), path)

    def program(self) -> ExportedProgram:
        """It as a program of `kiln.export`, with the tensors it has: `g.program().to_onnx(path)`."""
        self._runs()
        return ExportedProgram(derived.with_state(self._found, self._state()))

    def __reduce__(self) -> Any:
        raise TypeError("Graph: it is not pickled: g.save(path) writes it, str(g) is its text")


def _fed(value: Any, own: Any) -> Any:
    """What is fed for an input, as a tensor."""
    if isinstance(value, (Tensor, ir.Value)):
        return value
    return tensor(value, dtype=getattr(_core, own.dtype))


@_core.Function
def parse(source: str, tensors: Mapping[str, Any] | None = None) -> Graph:
    """The graph that a text says: `str(g)` gives it again. `tensors`: those that the graph has, by name.

    Nothing in it is evaluated; ValueError, with the line, for a text that is no graph.

    >>> import kiln
    >>> x = kiln.graph.placeholder("x", ("n",))
    >>> g = kiln.graph.parse(str(kiln.graph.Graph(x, x * x)))
    >>> g(kiln.tensor([3.0]))
    tensor([9.])
    """
    if not isinstance(source, str):
        raise TypeError(message("graph.parse", "a text", describe(source)))
    found, graph = read(source, tensors)
    check_places(found, graph)
    return Graph._of(derived.restored(found, graph, found.out_tree, found.outputs))


def load(path: Any) -> Graph:
    """The graph in a program's file, which `save` of a graph or `kiln.export.save` wrote."""
    return of_program(files.load(path))


def of_program(program: Any) -> Graph:
    """The graph of what `kiln.jit.trace`, `kiln.export.export` or `from_function` made."""
    if isinstance(program, Graph):
        return program
    held = getattr(program, "_captured", None) or getattr(program, "captured", None)
    runs = getattr(program, "_program", None)
    if not isinstance(held, Captured) or not isinstance(runs, Program):
        raise TypeError(message("from_function", "a function, a module or a program", describe(program)))
    return Graph._of(held, runs.homes)


@_core.Function
def from_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The graph of what a function or module does with these arguments: placeholders, which say dtypes and
    sizes (tensors do too), in any containers; what is no tensor is part of the graph.

    The function is traced, as `kiln.jit.trace` does it: parameters and buffers of a module are the graph's,
    what reads a value is refused with its line. Of what a trace or export made: its graph.

    >>> import kiln
    >>> x = kiln.graph.placeholder("x", ("n", 3))
    >>> kiln.graph.from_function(kiln.nn.Linear(3, 2), x)
    <Graph Linear(input) of 1 node>
    """
    if not args and not kwargs and not isinstance(function, type(from_function)):
        return of_program(function)
    if not callable(function):
        raise TypeError(message("from_function", "a function or a module", describe(function)))
    leaves: list[Any] = []
    tree = flatten((args, kwargs), leaves)
    examples, dims = [], []
    for x in leaves:
        node = is_node(x)
        declared = x.recorder.declared.get(x.recorder.placed.get(id(x.whole))) if node else None
        if node and declared is None:
            raise ValueError("from_function: takes placeholders, not what ops on them gave")
        examples.append(x.whole if node else x)
        dims.append({d: n for d, n in enumerate(declared or ()) if isinstance(n, Dim)} or None)
    given, named = build(tree, iter(examples))
    specs, named_specs = _specs(tree, iter(dims))
    dynamic: Any = (*specs, *named_specs.values()) if any(dims) else None
    if dynamic is not None and named_specs:
        names = parameter_names(function, len(args))
        dynamic = dict(zip([*names, *named_specs], dynamic))
    has_values = not any(map(is_node, leaves))
    found, again = (capture(function, given, named, dynamic, has_values=has_values) for _ in range(2))
    compare(found, again)
    made = Graph._of(found)
    if isinstance(function, Module):
        made._model = weakref.ref(function)
    return made


def _specs(tree: Tree, dims: Any) -> Any:
    """What `dynamic_shapes` says of the leaves of a tree."""
    if tree.kind == "leaf":
        return next(dims)
    if tree.kind == "constant":
        return None
    items = [_specs(item, dims) for item in tree.items]
    if tree.kind == "dict":
        return dict(zip(tree.keys, items))
    return items
