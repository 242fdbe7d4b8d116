"""A program as modules again: `kiln.export.unflatten`.

Each call of a module of the model is a part of the program's steps, and has a graph: its arguments and what
else it uses that is made outside are placeholders, its own parameters and buffers attributes, calls of
modules below it `call_module`. Buffers are written by the part that changes them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from kiln import _core
from kiln.export.graph_module import Steps
from kiln.export.program import ExportedProgram, check_free
from kiln.fx import Graph, Interpreter, Node
from kiln.graph.size import symbol
from kiln.graph.text import TextError
from kiln.nn import Module
from kiln.table.callables import name_helpers as _name_helpers
from kiln.tracing.captured import Captured
from kiln.tracing.hierarchy import UNKNOWN, Hierarchy, ModuleCall
from kiln.tracing.program import Home, Program
from kiln.tracing.restore import Restored
from kiln.tracing.trees import Tree, alike, build, difference, flatten


class InterpreterModule(Module):
    """A module of an unflattened program: runs the graph of its call, node by node.

    `graph` may be changed, modules and tensors be exchanged. A module that the model called several times has
    one graph if all its calls do the same, else several, of which a call by itself takes the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._graphs: list[Graph] = []
        self._signatures: list[tuple[Tree, Tree] | None] = []  # of each: as the model calls it

    @property
    def graph(self) -> Graph:
        """What a call does."""
        if not self._graphs:
            raise AttributeError("this module has no graph: no call of it stands in the program by itself")
        return self._graphs[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(None, args, kwargs)

    def call(self, which: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call by number `which` of those that differ does; None: the first that takes these."""
        if not self._graphs:
            raise RuntimeError(
                "unflatten: no call of this module stands in the program by itself: it did nothing, was not "
                "called, or ran inside of control flow"
            )
        leaves: list[Any] = []
        tree = flatten((args, kwargs), leaves)
        told = ""
        for k in range(len(self._graphs)) if which is None else (which,):
            signature = self._signatures[k]
            if signature is None:
                if kwargs:
                    raise TypeError(
                        "unflatten: a module takes its tensors by position; preserve_module_call_signature "
                        "of export keeps how the model calls it"
                    )
                return self._run(k, args)
            in_tree, out_tree = signature
            if alike(tree, in_tree):
                return build(out_tree, iter(self._run(k, leaves)))
            if not told:
                for a, b, name in zip(in_tree.items, tree.items, ("args", "kwargs")):
                    told = told or difference(a, b, [], name)
        raise TypeError(f"unflatten: {told or 'other arguments than in the example'}")

    def _run(self, which: int, tensors: Sequence[Any]) -> Any:
        graph = self._graphs[which]
        return Interpreter(self, graph=graph).run(*tensors, *_drawn(graph, len(tensors)))


def _drawn(graph: Graph, given: int) -> list[int]:
    """The random numbers of a call by itself, which gives none: (kind, place, end) of each are in `meta`."""
    rest = [node for node in graph.nodes if node.op == "placeholder"][given:]
    if not rest or any("drawn" not in node.meta for node in rest):
        return []
    found = [node.meta["drawn"] for node in rest]
    places = [(at, end) for kind, at, end in found if kind != "seed"]
    first = min((at for at, _ in places), default=0)
    seed, start = _core.next_random(max((end for _, end in places), default=first) - first)
    return [seed if kind == "seed" else start + at - first for kind, at, _ in found]


class UnflattenedModule(InterpreterModule):
    """A program as a module with the modules of the model it was made of."""

    _checked: _Run

    def call(self, which: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._checked.run(self, args, kwargs)


class _Run(Program):
    """Arguments are checked, and results given, as the program's are; its parts run one by one."""

    def __init__(self, captured: Captured, homes: list[Home]) -> None:
        super().__init__(captured, homes)
        self._module: UnflattenedModule

    def run(self, module: UnflattenedModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives."""
        made = _Run(self.captured.in_one_mode(), _homes(module, self.captured))
        made._module = module
        return made._slow(None, args, kwargs)

    def _results(self, found: Captured, operands: list[Any]) -> tuple[Any, ...]:
        module = self._module
        for check in found.checks:
            check.before(operands)
        numbers = found.draw(operands)
        given = [*operands[: len(found.inputs)], *numbers]
        results: tuple[Any, ...] = Interpreter(module, graph=module.graph).run(*given)
        for check in found.checks:
            check.after(operands, results)
        return results

    def __deepcopy__(self, memo: dict[int, Any]) -> _Run:
        return self  # which holds nothing of a module


def _homes(module: Module, found: Captured) -> list[Home]:
    """Where a module holds the tensors of a program."""
    homes: list[Home] = []
    for s in found.state:
        if s.kind == "constant":
            homes.append((vars(module), f"_{s.name}"))
            continue
        path, _, key = s.name.rpartition(".")
        holder = module.get_submodule(path) if path else module
        held = holder._parameters if s.kind == "parameter" else holder._buffers
        homes.append((held, key))
    return homes


def call_again(module: Any, which: int, *args: Any, **kwargs: Any) -> Any:
    """A further call of a module, which does something else than its first."""
    return (
        module.call(which, args, kwargs) if isinstance(module, InterpreterModule) else module(*args, **kwargs)
    )


def unflatten(module: ExportedProgram, flat_args_adapter: Any = None) -> UnflattenedModule:
    """A program as a module with the modules, parameters and buffers of the model it was made of, by their
    names; its tensors are the program's. Modules may be exchanged for others, and called by themselves: with
    the tensors that the model gave them by position, or as the model calls them, if
    `preserve_module_call_signature` of `export` named them.

    NotImplementedError for a program that was not made of a module.

    >>> import kiln
    >>> net = kiln.nn.Sequential(kiln.nn.Linear(3, 4), kiln.nn.ReLU(), kiln.nn.Linear(4, 2))
    >>> whole = kiln.export.unflatten(kiln.export.export(net, (kiln.ones(1, 3),)))
    >>> [name for name, _ in whole.named_children()]
    ['0', '1', '2']
    >>> whole.get_submodule("0")(kiln.ones(1, 3)).shape
    kiln.Size([1, 4])
    """
    if flat_args_adapter is not None:
        raise NotImplementedError("unflatten: kiln has no flat_args_adapter: leave it out")
    found = module._captured
    graph, held = found.graph, found.hierarchy
    if held is None:
        raise NotImplementedError(
            f"unflatten: {found.name} does not say which of its steps are calls of modules: it was made of a "
            "function, or is of a file of before; export the model anew"
        )
    try:
        rest = Restored(graph)
    except TextError as error:
        raise NotImplementedError(f"unflatten: {found.name} has {error}") from None
    tensors = [own[key] for own, key in module._homes]
    made = _Unflattening(found, held, rest, tensors).root
    made.train(module.training)
    return made


class _Part:
    """A call of a module, with those inside it."""

    def __init__(self, name: str, first: int, last: int, call: ModuleCall | None = None) -> None:
        self.name, self.first, self.last, self.call = name, first, last, call
        self.given: list[int] = []
        self.returned: list[int] = []
        self.states: list[tuple[int, int]] = []
        self.parts: list[_Part] = []


class _Unflattening:
    """What all parts share."""

    def __init__(self, found: Captured, held: Hierarchy, rest: Restored, tensors: list[Any]) -> None:
        self.found, self.rest, self.tensors = found, rest, tensors
        self.root = UnflattenedModule()
        self.modules: dict[str, InterpreterModule] = {"": self.root}
        self.names: dict[str, list[str]] = {"": [""]}  # of each module, by its first name: all
        for name, own in held.modules:
            self.names.setdefault(own, []).append(name)
        self._build_modules(held)
        self.state_names: list[list[str]] = [[s.name] for s in found.state]
        for name, which in held.tied:
            if not 0 <= which < len(found.state):
                raise ValueError(f"unflatten: {name}: there is no state {which}")
            self.state_names[which].append(name)
        for which, names in enumerate(self.state_names):
            for name in names:
                self._put(which, name)
        inputs = len(found.inputs)
        self.current = {
            inputs + k: inputs + k for k in range(len(found.state))
        }  # operand -> what it holds now
        self.changes = {inputs + k for kind, k in found.mutated if kind == "state"}
        self.versions: dict[int, int] = {}  # what a part writes into a buffer -> the buffer's operand
        root = self._tree(held.calls)
        root.returned = list(rest.results)
        built = _Building(self, root)
        built.run()
        self.root._graphs.append(built.graph)
        vars(self.root)["_checked"] = _Run(found, [])

    # -- modules and tensors ------------------------------------------------------------------------------

    def _build_modules(self, held: Hierarchy) -> None:
        for name, own in held.modules:
            if own not in self.modules:
                self.modules[own] = InterpreterModule()
            path, _, key = name.rpartition(".")
            holder, module = self._module_at(path), self.modules[own]
            if holder._modules.get(key) is module:
                continue
            check_free(holder, key, name, "module")
            if name != own and any(m is holder for m in module.modules()):
                raise ValueError(f"unflatten: {name}: the module {own} would hold itself")
            holder._modules[key] = module

    def _module_at(self, path: str) -> Module:
        module: Module = self.root
        for part in path.split(".") if path else ():
            below = module._modules.get(part)
            if below is None:
                below = module._modules[part] = InterpreterModule()
            module = below
        return module

    def _put(self, which: int, name: str) -> None:
        state, tensor = self.found.state[which], self.tensors[which]
        if state.kind == "constant":
            vars(self.root)[f"_{name}"] = tensor
            return
        path, _, key = name.rpartition(".")
        module = self._module_at(path)
        if any(held.get(key) is tensor for held in (module._parameters, module._buffers)):
            return  # by another name of its module
        check_free(module, key, name)
        if state.kind == "parameter":
            module._parameters[key] = tensor
        else:
            module._buffers[key] = tensor
            module._keep(key, name not in self.found.unsaved)

    def inside(self, names: list[str], part: str) -> str | None:
        """What is called so, in a part: the rest of its shortest name there."""
        found = [
            name[len(around) + 1 :] if around else name
            for around in self.names[part]
            for name in names
            if not around or name.startswith(f"{around}.")
        ]
        return min(found, key=lambda name: name.count("."), default=None)

    # -- calls --------------------------------------------------------------------------------------------

    def _tree(self, calls: tuple[ModuleCall, ...]) -> _Part:
        graph, rest = self.found.graph, self.rest
        values = graph.values()

        def number(k: int) -> int:
            made = rest.number_of(values[k]) if 0 <= k < len(values) else None
            return UNKNOWN if made is None else made

        root = _Part("", 0, len(rest.steps))
        around = [root]
        for call in calls:
            if not 0 <= call.first <= call.last < len(rest.begins):
                raise ValueError(f"unflatten: a call of {call.module} is none of the program's nodes")
            part = _Part(call.module, rest.begins[call.first], rest.begins[call.last], call)
            while len(around) > 1 and not self._holds(around[-1], part):
                around.pop()
            if part.first < part.last or call.in_tree is not None:
                self._enter(part, around, number)
        self._find_returned(root)
        return root

    def _holds(self, around: _Part, part: _Part) -> bool:
        """Whether a call is inside of another one; one without steps at its end by whose module it is."""
        if part.first == part.last == around.last:
            return self.inside(self.names[part.name], around.name) is not None
        return around.first <= part.first and part.last <= around.last

    def _enter(self, part: _Part, around: list[_Part], number: Callable[[int], int]) -> None:
        call = part.call
        assert call is not None
        holder = around[-1]
        before = holder.parts[-1].last if holder.parts else holder.first
        if part.first < before:
            raise ValueError(f"unflatten: a call of {call.module} overlaps another one")
        if self.inside(self.names[call.module], holder.name) is None:
            return  # (its steps are those of who calls it)
        part.given, part.returned = list(map(number, call.given)), list(map(number, call.returned))
        inputs = len(self.found.inputs)
        for which, k in call.states:
            made = number(k)
            if not 0 <= which < len(self.found.state):
                raise ValueError(f"unflatten: a call of {call.module} writes state {which}, which is none")
            if made >= len(self.rest.operands) and self.inside(self.state_names[which], part.name):
                part.states.append((inputs + which, made))
                self.versions[made] = inputs + which
        holder.parts.append(part)
        around.append(part)

    def _find_returned(self, root: _Part) -> None:
        """What each part makes that is used outside of it: what the module returned first."""
        last: dict[int, int] = {}  # value -> the last step that uses it
        for at, step in enumerate(self.rest.steps):
            last.update((k, at) for kind, k in step.args if kind == "value")
        end = len(self.rest.steps)
        last.update((k, end) for k in self.rest.results)
        every: list[_Part] = []
        stack = [root]
        while stack:
            part = stack.pop()
            every.append(part)
            stack += part.parts
        for part in every:  # what a call that keeps its signature is given and gives is used too
            if part.call is not None and part.call.in_tree is not None:
                last.update((k, max(last.get(k, 0), part.first)) for k in part.given)
                last.update((k, max(last.get(k, 0), part.last)) for k in part.returned)
        for part in every[1:]:
            assert part.call is not None
            if part.call.in_tree is not None:
                if UNKNOWN in part.returned or UNKNOWN in part.given:
                    raise NotImplementedError(
                        f"unflatten: {part.name} is given or returns a tensor that the program has not, as "
                        "nothing uses it: leave it out of preserve_module_call_signature"
                    )
                continue
            made = [k for step in self.rest.steps[part.first : part.last] for k in step.outs]
            used = [k for k in made if last.get(k, -1) >= part.last and k not in self.versions]
            first = [k for k in dict.fromkeys(part.returned) if k in used]
            part.returned = [*first, *(k for k in used if k not in first)]


class _Building(Steps):
    """The graph of one part."""

    def __init__(self, whole: _Unflattening, part: _Part) -> None:
        super().__init__(whole.found.dims, whole.rest.sizes)
        self.whole, self.part = whole, part
        self.needs: list[tuple[str, int]] = []  # what its placeholders are
        self._last: Node | None = None  # of them
        self._steady: dict[int, Node] = {}  # of tensors that nothing writes

    def run(self) -> None:
        """Makes the graph."""
        whole, part = self.whole, self.part
        kept = part.call is not None and part.call.in_tree is not None
        if part.call is None:
            for k, own in enumerate(whole.found.inputs):
                self._placeholder(("value", k), own.name)
            for k, (kind, _) in enumerate(whole.found.random):
                self._placeholder(("number", k), kind)
        else:
            used = {
                k
                for step in whole.rest.steps[part.first : part.last]
                for kind, k in step.args
                if kind == "value"
            }
            for k in part.given if kept else dict.fromkeys(part.given):
                if kept or k in used:
                    self._placeholder(("value", k), "arg")
        at = part.first
        for below in part.parts:
            self._steps(at, below.first)
            self._call(below)
            at = below.last
        self._steps(at, part.last)
        returned = tuple(map(self._value, part.returned))
        for operand, k in part.states:
            if whole.current[operand] != k:
                self.graph.call_method("copy_", (self._own(operand), self._value(k)))
                whole.current[operand] = k
        self.graph.output(
            returned[0] if part.call is not None and not kept and len(returned) == 1 else returned
        )
        if kept and len(self.needs) > len(part.given):
            raise NotImplementedError(
                f"unflatten: {part.name} uses a tensor or number that is none of its arguments: leave it out "
                "of preserve_module_call_signature"
            )

    def _steps(self, first: int, last: int) -> None:
        for step in self.whole.rest.steps[first:last]:
            self.add(step)

    # -- what is used -------------------------------------------------------------------------------------

    def _placeholder(self, key: tuple[str, int], name: str) -> Node:
        node = self._insert(lambda: self.graph.placeholder(name.replace(".", "_")))
        self.needs.append(key)
        if key[0] == "value":
            shape = self.whole.rest.sizes[key[1]]
            node.meta["val"] = self._like(self.whole.rest.dtypes[key[1]], shape)
            self.values.setdefault(key[1], node)
        else:
            self._others[key] = node
            self._say_drawn(node, key[1])
        return node

    def _say_drawn(self, node: Node, which: int) -> None:
        """Which of the numbers that a call draws one is, and where those of the next one begin."""
        found = self.whole.found
        kind, at = found.random[which]
        places = [n for other, n in found.random if other != "seed"]
        if all(isinstance(n, int) for n in (*places, found.drawn)):
            node.meta["drawn"] = kind, at, min((n for n in places if n > at), default=found.drawn)

    def _insert(self, make: Callable[[], Node]) -> Node:
        """A placeholder behind the others."""
        first = next(iter(self.graph.nodes), None)
        if self._last is not None:
            with self.graph.inserting_after(self._last):
                self._last = make()
        elif first is not None:
            with self.graph.inserting_before(first):
                self._last = make()
        else:
            self._last = make()
        return self._last

    @property
    def _others(self) -> dict[Any, Node]:
        """Numbers and sizes that are given."""
        found: dict[Any, Node] = self.__dict__.setdefault("_given", {})
        return found

    def _value(self, k: int) -> Node:
        """A value, here: made here, a tensor of the part's own, or given."""
        if k in self.values:
            return self.values[k]  # type: ignore[no-any-return]
        whole = self.whole
        operand = whole.versions.get(k, k)
        if operand in whole.current:
            if whole.current[operand] != k:
                name = whole.found.state[operand - len(whole.found.inputs)].name
                raise NotImplementedError(
                    f"unflatten: {self.part.name or whole.found.name} uses what {name} held before it was "
                    "written"
                )
            if self._path(operand) is not None:
                if operand not in whole.changes:
                    self.values[k] = self._own(operand)
                    return self.values[k]  # type: ignore[no-any-return]
                return self.graph.call_method("clone", (self._own(operand),))
        return self._placeholder(("value", k), "arg")

    def _path(self, operand: int) -> str | None:
        which = operand - len(self.whole.found.inputs)
        if self.whole.found.state[which].kind == "constant":
            return None if self.part.name else f"_{self.whole.found.state[which].name}"
        return self.whole.inside(self.whole.state_names[which], self.part.name)

    def _own(self, operand: int) -> Node:
        """The node of a tensor that a module has."""
        return self.graph.get_attr(self._path(operand) or "")

    def _argument(self, kind: str, x: Any) -> Any:
        if kind == "number":
            return x
        if kind == "value":
            return self._value(x)
        return self._others.get(("number", x)) or self._placeholder(
            ("number", x), self.whole.found.random[x][0]
        )

    def _place(self, slot: int) -> tuple[Node, int]:
        for kind, k in self.needs:
            if kind == "value":
                for d, size in enumerate(self.whole.rest.sizes[k]):
                    if size is symbol(slot):
                        return self.values[k], d
        raise NotImplementedError(
            f"unflatten: {self.part.name or self.whole.found.name} uses a size that none of its tensors has"
        )

    # -- calls --------------------------------------------------------------------------------------------

    def _call(self, below: _Part) -> None:
        whole = self.whole
        module = whole.modules[below.name]
        before = dict(whole.current)
        made = _Building(whole, below)
        made.run()
        after, whole.current = whole.current, before
        given = tuple([self._argument("operand" if kind == "number" else kind, k) for kind, k in made.needs])
        call, kwargs = below.call, {}
        assert call is not None
        signature = None
        if call.in_tree is not None and call.out_tree is not None:
            signature = call.in_tree, call.out_tree
            given, kwargs = build(call.in_tree, iter(given))
        whole.current = after
        which = _numbered(module, made.graph, signature)
        path = whole.inside(whole.names[below.name], self.part.name) or ""
        if which:
            target = self.graph.get_attr(path)
            node = self.graph.call_function(call_again, (target, which, *given), kwargs)
        else:
            node = self.graph.call_module(path, given, kwargs)
        if signature is not None:
            places: list[Any] = []
            _places(signature[1], (), places)
            for k, path_of in zip(below.returned, places):
                if k in self.values or k in whole.current:
                    continue
                leaf = node
                for step in path_of:
                    leaf = self.graph.call_function(
                        getattr if isinstance(step, _Field) else operator.getitem, (leaf, step)
                    )
                self.values[k] = leaf
        elif len(below.returned) == 1:
            self.values[below.returned[0]] = node
        else:
            for at, k in enumerate(below.returned):
                self.values[k] = self.graph.call_function(operator.getitem, (node, at))


class _Field(str):
    """The name of a field of a dataclass."""


def _places(tree: Tree, path: tuple[Any, ...], found: list[Any]) -> None:
    """How to come to each tensor of a result."""
    if tree.kind == "leaf":
        found.append(path)
    keys: Any = range(len(tree.items))
    if tree.kind == "dict":
        keys = tree.keys
    elif tree.kind == "data":
        keys = map(_Field, tree.keys)
    for key, item in zip(keys, tree.items):
        _places(item, (*path, key), found)


def _numbered(module: InterpreterModule, graph: Graph, signature: tuple[Tree, Tree] | None) -> int:
    """Which of a module's graphs one is; a new one if it is none of them."""
    told = _nodes(graph)
    for k, known in enumerate(module._graphs):
        own = module._signatures[k]
        if _nodes(known) == told and (
            own is signature or (own and signature and all(map(alike, own, signature)))
        ):
            return k
    module._graphs.append(graph)
    module._signatures.append(signature)
    return len(module._graphs) - 1


def _nodes(graph: Graph) -> list[Any]:
    return [
        (node.name, node.op, str(node.target), repr(node.args), repr(node.kwargs)) for node in graph.nodes
    ]


_name_helpers(globals(), __name__)
