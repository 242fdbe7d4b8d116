"""`kiln.compile(fn, backend=callable)`: a function as a graph module for the program's own backend.

    call -> a capture that fits?  -> what the backend gave runs on the call's tensors
                none: the function runs once on copies, every call of kiln's functions a node with its value
                      -> GraphModule, example inputs -> backend

The copies' metadata (shapes, dtypes) may be read, and are asked for again at each call, as is all that the
run found outside of its arguments: globals, closures, attributes, modes. What cannot be kept in a graph
(values that are read, results whose sizes depend on values, changes of Python objects, random numbers of
Python's) breaks: the function then runs as it is, which is said once; with `fullgraph=True` that raises.
"""

from __future__ import annotations

import inspect
import operator
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

from kiln import _core
from kiln.capture.capturing import STATE
from kiln.capture.compile import Compiled
from kiln.capture.pure.guards import Place, entries_of
from kiln.device import device
from kiln.errors import warn
from kiln.fx import names
from kiln.fx.capture import Break, Capture, Watching
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.proxy import Proxy
from kiln.nn import Module as _Module
from kiln.utils import _pytree as pytree

__all__ = ["Backed", "backed"]

_MOST = 8  # captures of a function
_PLAIN = (int, float, complex, str, bytes, bool, type(None), _core.dtype, _core.Size, device)


def _look(x: Any) -> Any:
    """What must be the same of an argument."""
    if isinstance(x, _core.Tensor):
        return (type(x), tuple(x.shape), x.dtype, bool(x.requires_grad), tuple(x.stride()))
    if isinstance(x, _PLAIN):
        return (type(x), repr(x) if isinstance(x, float) else x)
    return _Same(x)


class _Same:
    """An object as a key, by its identity."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held


def _modes() -> Any:
    kiln = names.root_module()
    autocast = (kiln.is_autocast_enabled(), kiln.get_autocast_dtype("cpu"))
    return kiln.is_grad_enabled(), kiln.is_inference_mode_enabled(), kiln.get_default_dtype(), autocast


class _Guard:
    """That an entry of a container still holds what the run found there."""

    def __init__(self, place: Place) -> None:
        self.place = place
        held = place.held
        self.look = _look(held) if isinstance(held, _PLAIN) else None

    def holds(self) -> bool:
        """Whether it does."""
        if self.place.holds():
            return True
        if self.look is None:
            return False
        container, key, _ = self.place
        try:
            found = container.cell_contents if key is None else container[key]
        except (KeyError, IndexError, ValueError):
            return False
        return bool(_look(found) == self.look)


class _Count:
    """That a container holds as many entries as it did."""

    def __init__(self, container: Any) -> None:
        self.container, self.count = container, len(container)

    def holds(self) -> bool:
        """Whether it does."""
        return len(self.container) == self.count


class _Entry:
    """One capture: when it fits, and what runs."""

    def __init__(self, key: Any, guards: list[Any], capture: Capture, run: Any, out: Any) -> None:
        self.key, self.guards, self.run = key, guards, run
        self.places = capture.places
        tensors = [t for t, w in zip(capture.inputs, capture.places) if not isinstance(w, int)]
        self.looks = [(t, _look(t)) for t in tensors]  # of parameters, buffers and tensors that lay about
        self.results, self.out_spec = out

    def fits(self, key: Any) -> bool:
        """Whether it is what a call needs."""
        if key != self.key or not all(g.holds() for g in self.guards):
            return False
        return all(_look(t) == look for t, look in self.looks)

    def __call__(self, leaves: list[Any]) -> Any:
        made = self.run(*(leaves[w] if isinstance(w, int) else w for w in self.places))
        if isinstance(made, _core.Tensor):
            made = (made,)
        found = {"result": made, "input": leaves}
        values = [x if kind == "constant" else found[kind][x] for kind, x in self.results]
        return pytree.tree_unflatten(values, self.out_spec)


class Backed(Compiled):
    """A callable whose calls run what a backend made of their graphs; see the module's text."""

    backend: ClassVar[Any] = None
    fullgraph: ClassVar[bool] = False
    more: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "_captures", [])
        object.__setattr__(self, "_broken", [])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if STATE.capturing:
            return self._function(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        same = tuple(next(j for j, y in enumerate(leaves) if y is x) for x in leaves)
        key = (spec, tuple(map(_look, leaves)), same, _modes())
        for entry in self._captures:
            if entry.fits(key):
                return entry(leaves)
        if key in self._broken:
            return self._function(*args, **kwargs)
        try:
            if len(self._captures) >= _MOST:
                raise Break(f"it was captured {_MOST} times, for calls that were each another one")
            entry = self._capture(key, leaves, spec)
        except Break as found:
            if self.fullgraph:
                raise RuntimeError(f"compile: fullgraph=True, but {found}, in {self._name}") from None
            if not self._broken:
                warn(f"compile: a call of {self._name} runs without the backend: {found}")
            self._broken.append(key)
            return self._function(*args, **kwargs)
        self._captures.append(entry)
        return entry(leaves)

    def stats(self) -> dict[str, Any]:
        """Counts: captures, and kinds of calls that run without the backend."""
        return {"captures": len(self._captures), "without": len(self._broken)}

    def _capture(self, key: Any, leaves: list[Any], spec: Any) -> _Entry:
        capture, watch = Capture(), Watching()
        function = self._function
        for path, tensor in _owned(function):
            capture.paths.setdefault(id(tensor), path)
        shown = _argument_names(function, spec, leaves)
        given = [
            capture.lift(x, k, f"L_{name}_") if isinstance(x, _core.Tensor) else x
            for k, (x, name) in enumerate(zip(leaves, shown))
        ]
        args, kwargs = pytree.tree_unflatten(given, spec)
        state = _core.random_state()
        try:
            result = self._run(capture, watch, args, kwargs)
        finally:
            _core.set_random_state(*state)
        out, out_spec = pytree.tree_flatten(result)
        return self._made(key, capture, watch, leaves, out, out_spec)

    def _run(self, capture: Capture, watch: Watching, args: Any, kwargs: Any) -> Any:
        function = self._function
        attribute = _Module.__dict__.get("__getattribute__")

        def __getattribute__(module: Any, name: str) -> Any:
            found = object.__getattribute__(module, name)
            if isinstance(found, _core.Tensor) and not issubclass(type(found), Proxy):
                capture.lifted.append(found)
                return capture.lift(found, found, f"L_{capture.paths.get(id(found), name)}_")
            return found

        STATE.capturing, STATE.capture = True, capture
        _Module.__getattribute__ = __getattribute__  # type: ignore[method-assign]
        try:
            with watch:
                watch.note([args, kwargs])
                _core.take_all(True)
                try:
                    result = function(*args, **kwargs)
                finally:
                    _core.take_all(False)
            watch.refuse_changes()
        except Break:
            watch.undo()
            raise
        except Exception as error:
            watch.undo()
            found = _break_of(error)
            raise found or Break(f"it raised {type(error).__name__}: {error}") from None
        finally:
            STATE.capturing, STATE.capture = False, None
            if attribute is None:
                del _Module.__getattribute__
            else:
                _Module.__getattribute__ = attribute  # type: ignore[method-assign]
        return result

    def _made(
        self, key: Any, capture: Capture, watch: Watching, leaves: list[Any], out: Any, spec: Any
    ) -> _Entry:
        tensors: list[Any] = []
        results: list[Node] = []
        own = {id(x): k for k, x in enumerate(leaves) if isinstance(x, _core.Tensor)}
        for x in out:
            if not issubclass(type(x), Proxy):
                if isinstance(x, _core.Tensor):
                    raise Break("it returns a tensor that was there before")
                tensors.append(("constant", x))
            elif x._node is None or x._node.op == "placeholder":
                tensor, where, _ = x.source
                tensors.append(("input", own[id(tensor)]) if isinstance(where, int) else ("constant", tensor))
            else:
                tensors.append(("result", len(results)))
                results.append(x.node)
        capture.graph.output(tuple(results))
        for node in reversed(capture.graph.nodes):  # parts of results that nothing uses
            if not node.users and node.target is operator.getitem:
                capture.graph.erase_node(node)
        guards = _guards(self._function, watch)
        reached = {id(g.place.held) for g in guards if isinstance(g, _Guard)}
        for x in capture.lifted:
            if id(x) not in reached and id(x) not in own and id(x) not in capture.paths:
                raise Break("it uses a tensor that was computed where no graph sees it")
        if not any(n.op.startswith("call") for n in capture.graph.nodes):
            run: Any = lambda *given: ()  # noqa: E731
        else:
            module = GraphModule(capture.root, capture.graph)
            run = type(self).backend(module, list(capture.inputs), **self.more)
            if not callable(run):
                raise TypeError(f"compile: the backend must return a callable, got {type(run).__name__}")
        return _Entry(key, guards, capture, run, (tensors, spec))


def _break_of(error: BaseException) -> Break | None:
    """The break that an error came of."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, Break):
            return found
        found = found.__cause__ or found.__context__
    return None


def _owned(function: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers of the module that is called, with PyTorch's names for them in graphs."""
    own = function.__self__ if isinstance(function, MethodType) else function
    if not isinstance(own, _Module):
        return []
    found = []
    for path, module in own.named_modules():
        above = "self" + "".join(f"_modules_{part}" for part in path.split(".") if part)
        for kind in ("_parameters", "_buffers"):
            for name, tensor in vars(module)[kind].items():
                if tensor is not None:
                    found.append((f"{above}{kind}_{name}", tensor))
    return found


def _argument_names(function: Any, spec: Any, leaves: list[Any]) -> list[str]:
    """The names of a call's arguments, one for each leaf."""
    called = function.forward if isinstance(function, _Module) else function
    numbers = pytree.tree_unflatten(range(len(leaves)), spec)
    found = ["arg"] * len(leaves)
    try:
        bound = inspect.signature(called).bind(*numbers[0], **numbers[1]).arguments
    except (TypeError, ValueError):
        bound = {f"arg{k}": x for k, x in enumerate(numbers[0])} | numbers[1]
    for name, tree in bound.items():
        under = pytree.tree_leaves(tree)
        for j, k in enumerate(under):
            found[k] = name if not isinstance(tree, (list, tuple, dict)) else f"{name}_{j}_"
    return found


def _guards(function: Any, watch: Watching) -> list[Any]:
    """What a run found outside of its arguments: globals, closures, attributes of objects that it called."""
    places = list(watch.globals)
    waiting, seen = [function, *(g.held for g in watch.globals)], set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        inner = getattr(thing, "__func__", thing)
        if isinstance(inner, FunctionType) and (inner.__code__ in watch.codes):
            for entry in entries_of(inner):
                if entry.container is not None:
                    places.append(entry)
                    waiting.append(entry.held)
        elif isinstance(thing, MethodType):
            waiting.append(thing.__self__)
        elif type(thing).__module__ not in ("builtins", "numpy") and not isinstance(
            thing, (type, ModuleType, _core.Tensor, _Module, FunctionType)
        ):
            state = getattr(thing, "__dict__", None)
            if type(state) is dict and not type(thing).__module__.startswith("kiln"):
                places += [Place(state, k, v) for k, v in state.items()]
        elif isinstance(thing, (list, dict)) and len(thing) < 1000:
            items = enumerate(thing) if isinstance(thing, list) else thing.items()
            places += [Place(thing, k, v) for k, v in items]
    for thing in watch.objects_met():
        state = vars(thing)
        places += [Place(state, k, v) for k, v in state.items()]
        for held in state.values():
            if isinstance(held, (dict, list)) and len(held) < 1000:
                items = enumerate(held) if isinstance(held, list) else held.items()
                places += [Place(held, k, v) for k, v in items]
    places = [p for p in places if isinstance(p.container, (dict, list)) or p.key is None]
    counted = {id(p.container): p.container for p in places if isinstance(p.container, (dict, list))}
    spaces = {id(g.container) for g in watch.globals}
    return [*map(_Guard, places), *(_Count(c) for k, c in counted.items() if k not in spaces)]


def backed(backend: Any, fullgraph: bool, more: dict[str, Any]) -> type[Backed]:
    """The class of functions compiled by a backend."""
    entries = {"backend": staticmethod(backend), "fullgraph": fullgraph, "more": more}
    return type("Backed", (Backed,), entries)
