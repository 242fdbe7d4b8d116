"""`kiln.compile(fn, backend=callable)`: what a function does with tensors, as graph modules for a backend.

    call -> its tensors are stood for (`capture.py`); Python runs, ops are kept as steps
         -> the call returns, or a value is read: the steps are a graph that is known, and what the backend
            gave runs on the call's tensors; else GraphModule, example inputs -> backend

So a call is one graph if it reads no value, else several, and what Python does meanwhile is done at each
call: globals, attributes, lists, closures, random numbers and time are what they are then. With
`fullgraph=True` a value that is read raises.
"""

from __future__ import annotations

import gc
import inspect
import operator
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from types import CellType, MethodType
from typing import Any, ClassVar

from kiln import _core
from kiln.autograd.function import Function
from kiln.capture.capturing import STATE
from kiln.capture.compile import Compiled
from kiln.errors import shorten, warn
from kiln.fx.capture import Capture, Segment, Step
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.immutable_collections import immutable_dict, immutable_list
from kiln.fx.looks import Same, look
from kiln.fx.node import Node
from kiln.fx.sizes import Number, Symbols, Terms, given_number, tell_looks
from kiln.fx.types import asks_in_vain
from kiln.fx.values import Place, Value
from kiln.nn import Module as _Module
from kiln.nn import Parameter
from kiln.utils import _pytree as pytree

__all__ = ["Backed", "backed"]

_ASKS = (
    "{} asks for the type of what may be a tensor with `is`, `issubclass` or `id`, which what stands for a "
    "tensor cannot answer: write isinstance(x, kind) or type(x) == kind"
)
_MOST = 8  # graphs that start at one place of a function, before the rest run without the backend


class Backed(Compiled):
    """A callable whose calls run what a backend made of their graphs; see the module's text."""

    backend: ClassVar[Any] = None
    fullgraph: ClassVar[bool] = False
    dynamic: bool = False
    more: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "_firsts", {})
        object.__setattr__(self, "_counts", {})
        object.__setattr__(self, "_of_any_size", {})
        object.__setattr__(self, "_asks", None)  # the line that asks for types in vain, "" if there is none

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if STATE.capturing or STATE.stance == "force_eager":
            return self._function(*args, **kwargs)
        if self._asks is None:
            object.__setattr__(self, "_asks", asks_in_vain(self._function))
            if self.dynamic and not self._asks and asks_in_vain(self._function, True):
                object.__setattr__(self, "dynamic", False)  # `type(n) is int` is to be so
            if self._asks and not self.fullgraph:
                warn(f"compile: {self._name} runs without the backend: {_ASKS.format(self._asks)}")
        if self._asks and self.fullgraph:
            raise RuntimeError(f"compile: fullgraph=True, but {_ASKS.format(self._asks)}")
        if self._asks:
            return self._function(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = {id(x) for x in leaves if isinstance(x, _core.Tensor)}
        if tensors and _found_outside(self._function, tensors):
            return self._function(*args, **kwargs)
        called = args[0] if args else None  # a method's module is an argument

        def named() -> dict[int, str]:
            owned = _owned(self._function) or _owned(called)
            found = {id(tensor): path for path, tensor in owned}
            shown = _argument_names(self._function, spec, leaves) if tensors else []
            return found | {id(x): name for x, name in zip(leaves, shown) if id(x) in tensors}

        capture = Capture(self, named)
        if tensors or self.dynamic:
            args, kwargs = _given(capture, args, kwargs)
        try:
            result = _stood(capture, self._function, args, kwargs)
            if capture.broken is None:
                capture.flush()
        except Exception as error:
            if capture.broken is None:
                try:
                    capture.flush()
                finally:
                    _stand([args, kwargs], _real, set())
                    _settle(capture.finish())
                    shorten(error)
                raise
        finally:
            held = capture.finish()
            _stand([args, kwargs], _real, set())
        if capture.broken is not None:
            raise RuntimeError(f"compile: fullgraph=True, but {capture.broken}, in {self._name}") from None
        result = _stand(result, _real, set())
        del args, kwargs
        _settle(held)
        return result

    def stats(self) -> dict[str, Any]:
        """Counts: graphs that the backend was given."""
        return {"captures": sum(self._counts.values())}

    def first_of(self, key: Any) -> Step:
        """Where the steps of a segment begin."""
        found: Step = self._firsts.setdefault(key, Step("", None, (), {}))
        return found

    def made(self, capture: Capture, segment: Segment, live: tuple[int, ...]) -> Any:
        """What runs for a segment: what the backend gives for its graph."""
        capture_number = capture.number
        found = self._of_any_size.setdefault(_without_sizes(segment, live), []) if self.dynamic else []
        for known, before in found:
            if known.hold(segment):
                return before
        if self._counts.get(capture_number, 0) >= _MOST:
            said = f"{self._name} runs without the backend: {_MOST} graphs of it were captured before"
            if self.fullgraph:
                raise RuntimeError(f"compile: fullgraph=True, but {said}")
            warn(f"compile: a call of {said}")
            return partial(_run, segment.path, live)
        symbols = Symbols(segment) if self.dynamic else None
        module = GraphModule(_Module(), _graph(segment, live, capture.named(), symbols))
        self._counts[capture_number] = self._counts.get(capture_number, 0) + 1
        examples = list(segment.inputs)
        if symbols is not None:
            examples = symbols.given(examples, segment.numbers)
        made = type(self).backend(module, examples, **self.more)
        if not callable(made):
            raise TypeError(f"compile: the backend must return a callable, got {type(made).__name__}")
        if symbols is None:
            return lambda tensors, numbers: made(*tensors)
        given = symbols.given

        def run(tensors: list[Any], numbers: list[int]) -> Any:
            return made(*given(tensors, numbers))

        found.append((symbols, run))
        return run


def _given(capture: Capture, args: Any, kwargs: Any) -> Any:
    """The arguments with values for their tensors; ints that may vary."""

    def value(x: Any) -> Any:
        if isinstance(x, _core.Tensor) and not issubclass(type(x), Value):
            return capture.lift(x, "argument")
        return given_number(x, capture) if type(x) is int and capture.owner.dynamic else x

    seen: set[int] = set()
    return tuple([_stand(x, value, seen) for x in args]), {
        k: _stand(x, value, seen) for k, x in kwargs.items()
    }


def _graph(segment: Segment, live: tuple[int, ...], paths: dict[int, str], symbols: Symbols | None) -> Graph:
    """A segment's steps as a graph whose results are some of them; `paths`: names of tensors by identity."""
    graph = Graph()
    placed: dict[str, list[Node]] = {"input": [], "step": []}
    terms = Terms(graph, segment, placed)
    names: list[str] = []
    for number, (tensor, name) in enumerate(zip(segment.inputs, segment.names)):
        name = f"L_{paths.get(id(tensor), name)}_"
        names.append(name if name not in names else f"{name}{number}_")
    for feed in range(len(names)) if symbols is None else symbols.feeds:
        if not isinstance(feed, int):
            terms.add(feed)
            continue
        tensor, name = segment.inputs[feed], names[feed]
        node = graph.placeholder("".join(c if c.isalnum() else "_" for c in name))
        node.meta["example_value"] = node.meta["val"] = tensor.detach()
        placed["input"].append(node)
    for step in segment.path:
        args, kwargs = _kept((step.args, step.kwargs), placed, terms)
        node = graph.create_node(step.kind, step.target, args, dict(kwargs))
        node.meta["example_value"] = node.meta["val"] = step.result
        node.stack_trace = step.line
        placed["step"].append(node)
    graph.output(tuple(placed["step"][k] for k in live))
    for node in reversed(graph.nodes):  # parts of results that nothing uses
        if not node.users and node.target is operator.getitem:
            graph.erase_node(node)
    if symbols is not None:
        tell_looks(graph, segment.inputs, segment.fixed)
    return graph


def _without_sizes(segment: Segment, live: tuple[int, ...]) -> Any:
    """What graphs have in common that differ in the sizes of their inputs alone. Sizes of 0 and 1, which
    broadcast, are sizes of their own, and so are floats among the arguments.
    """
    inputs = []
    for k, x in enumerate(segment.inputs):
        shape = tuple(x.shape) if k in segment.fixed else tuple(min(n, 2) for n in x.shape)
        inputs.append((type(x), shape, x.dtype, x.is_contiguous(), x.requires_grad, x.is_leaf))
    steps = [
        (s.kind, s.target if isinstance(s.target, str) else Same(s.target), _frozen((s.args, s.kwargs)))
        for s in segment.path
    ]
    numbers = tuple(min(n, 2) for n in segment.numbers)
    return live, segment.start_modes, _core.get_default_dtype(), tuple(inputs), numbers, tuple(steps)


def _frozen(a: Any) -> Any:
    """Arguments as a key."""
    if isinstance(a, Place):
        return a.frozen()
    if isinstance(a, (tuple, list)):
        return (type(a), *map(_frozen, a))
    if isinstance(a, dict):
        return (type(a), *a, *map(_frozen, a.values()))
    if isinstance(a, slice):
        return (slice, _frozen((a.start, a.stop, a.step)))
    return look(a)


def _run(path: list[Step], live: tuple[int, ...], tensors: list[Any], numbers: list[int]) -> Any:
    """What a graph of the steps would give."""
    results: list[Any] = []
    for step in path:
        results.append(step.call(results, tensors, numbers))
    return tuple(results[k] for k in live)


def _kept(a: Any, placed: dict[str, list[Node]], terms: Terms) -> Any:
    """Arguments as nodes hold them."""
    if isinstance(a, Place):
        return placed[a.kind][a.number] if type(a) is Place else terms.node(a)
    if isinstance(a, tuple):
        items = [_kept(x, placed, terms) for x in a]
        if type(a) is tuple:
            return tuple(items)
        return type(a)(*items) if hasattr(a, "_fields") else type(a)(items)
    if isinstance(a, list):
        return immutable_list([_kept(x, placed, terms) for x in a])
    if isinstance(a, dict):
        return immutable_dict({k: _kept(x, placed, terms) for k, x in a.items()})
    if isinstance(a, slice):
        return slice(*(_kept(x, placed, terms) for x in (a.start, a.stop, a.step)))
    return a


# -- what stands for tensors while a function runs, and after it --

_HOOKED: list[bool] = []
_APPLY: Any = vars(Function)["apply"].__func__
_NEW: Any = vars(Parameter)["__new__"]


# where a module's tensors are found as they are
_ALL_TENSORS = frozenset(
    "_parameters _buffers parameters named_parameters buffers named_buffers state_dict get_parameter "
    "get_buffer __dict__ _apply".split()
)


def _attribute(module: Any, name: str, found: Any) -> Any:
    """A module's attribute: while it is captured, what stands for a tensor."""
    capture = STATE.capture
    if capture is None or capture.passing:
        return found
    if isinstance(found, _core.Tensor):
        return found if issubclass(type(found), Value) else capture.lift(found, name, True)
    if capture.segment.writes and name in _ALL_TENSORS:
        capture.end()  # what is found there stands for nothing
    return found


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Function.apply`: while it is captured, of the tensors themselves."""
    capture = STATE.capture
    if capture is None or capture.passing:
        return _APPLY(cls, *args, **kwargs)
    return capture.at_once(partial(_APPLY, cls), args, kwargs)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Parameter(...)`, of the tensor itself."""
    capture = STATE.capture
    if capture is None or capture.passing:
        return _NEW(cls, *args, **kwargs)
    return _real(capture.at_once(partial(_NEW, cls), args, kwargs))


def _hook() -> None:
    """What a captured function finds is told to its capture from the first call on, in any thread. It stays:
    setting it for each call would have Python forget what it knows of all classes of modules.
    """
    if not _HOOKED:
        _HOOKED.append(True)
        _core.hook_attributes(_Module, _attribute)
        setattr(Function, "apply", classmethod(_core.Function(_apply, True)))  # noqa: B010
        setattr(Parameter, "__new__", staticmethod(_core.Function(_new, True)))  # noqa: B010


def _stood(capture: Capture, function: Any, args: Any, kwargs: Any) -> Any:
    """Calls a function; what it does with kiln is told to the capture."""
    _hook()
    STATE.capturing, STATE.capture = True, capture
    before = _core.take_all(True)
    try:
        return function(*args, **kwargs)
    finally:
        _core.take_all(before)
        STATE.capturing, STATE.capture = False, None


def _real(x: Any) -> Any:
    return x.value if issubclass(type(x), Value) else int(x) if type(x) is Number else x


def _stand(a: Any, function: Any, seen: set[int]) -> Any:
    """`a` with what `function` gives in the place of what it holds: lists and dicts are changed where they
    are, tuples made anew.
    """
    found = function(a)
    if found is not a:
        return found
    if isinstance(a, (list, deque, dict)):
        if id(a) not in seen:
            seen.add(id(a))
            for key, x in list(enumerate(a) if not isinstance(a, dict) else a.items()):
                y = _stand(x, function, seen)
                if y is not x:
                    a[key] = y
    elif isinstance(a, tuple):
        items = [_stand(x, function, seen) for x in a]
        if any(x is not y for x, y in zip(a, items)):
            if type(a) is tuple:
                return tuple(items)
            return type(a)(*items) if hasattr(a, "_fields") else type(a)(items)
    return a


def _settle(values: list[Value]) -> None:
    """Puts tensors where objects of the program hold values."""
    held = [v for v in values if sys.getrefcount(v) > 3]
    waiting: list[tuple[Any, Any]] = [(v, v.value) for v in held]
    frozen = bool(waiting) and gc.get_freeze_count() > 0
    if frozen:  # what is frozen is not looked through
        gc.unfreeze()
    while waiting:
        thing, real = waiting.pop()
        for holder in gc.get_referrers(thing):
            if holder is not values and holder is not held and holder is not waiting:
                _put(holder, thing, real, waiting)
    if frozen:
        gc.freeze()


def _put(holder: Any, thing: Any, real: Any, waiting: list[tuple[Any, Any]]) -> None:
    """`real` in the place of `thing` in something that holds it."""
    if isinstance(holder, CellType):
        holder.cell_contents = real
    elif isinstance(holder, dict):
        if any(k is thing for k in holder):
            items = [(real if k is thing else k, v) for k, v in holder.items()]
            holder.clear()
            holder.update(items)
        for key, x in list(holder.items()):
            if x is thing:
                holder[key] = real
    elif isinstance(holder, (list, deque)):
        for k, x in enumerate(holder):
            if x is thing:
                holder[k] = real
    elif isinstance(holder, set):
        holder.discard(thing)
        holder.add(real)
    elif isinstance(holder, (tuple, frozenset)):
        items = [real if x is thing else x for x in holder]
        made = type(holder)(*items) if hasattr(holder, "_fields") else type(holder)(items)
        waiting.append((holder, made))
    elif isinstance(holder, partial):
        state: Any = holder.__reduce__()[2]
        function, args, keywords, own = state
        new = tuple(real if x is thing else x for x in args)
        named = {k: real if x is thing else x for k, x in keywords.items()}
        partial.__setstate__(holder, (function, new, named, own))  # type: ignore[attr-defined]
    else:
        for key, x in list(getattr(holder, "__dict__", {}).items()):
            if x is thing:
                holder.__dict__[key] = real
        for kind in type(holder).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if getattr(holder, name, None) is thing:
                    setattr(holder, name, real)


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


def _found_outside(function: Any, tensors: set[int]) -> bool:
    """Whether an argument is also what the function finds outside: no stand-in would be that tensor."""
    own = getattr(function, "__func__", function)
    code = getattr(own, "__code__", None)
    if code is None:
        return False
    found = [own.__globals__[name] for name in code.co_names if name in own.__globals__]
    for cell in own.__closure__ or ():
        with suppress(ValueError):  # nothing is in it yet
            found.append(cell.cell_contents)
    for x in list(found):
        if type(x) in (list, tuple, set, dict) and len(x) < 100:
            found += [*x, *x.values()] if isinstance(x, dict) else x
    outside = {id(x) for x in found if isinstance(x, _core.Tensor)}
    return not tensors.isdisjoint(outside)


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


def backed(backend: Any, fullgraph: bool, dynamic: bool, more: dict[str, Any]) -> type[Backed]:
    """The class of functions compiled by a backend."""
    entries = {
        "backend": staticmethod(backend), "fullgraph": fullgraph, "dynamic": dynamic, "more": more,
    }  # fmt: skip
    return type("Backed", (Backed,), entries)
