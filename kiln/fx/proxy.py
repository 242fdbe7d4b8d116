"""What stands for a value while a program is traced, and what makes nodes of what is done with it."""

from __future__ import annotations

import copy
import dis
import enum
import linecache
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln.absent import asking
from kiln.absent import hint_missing as _hint_missing
from kiln.capture.capturing import STATE
from kiln.device import device
from kiln.errors import is_own
from kiln.fx import calls, names
from kiln.fx.graph import Graph, base_name
from kiln.fx.immutable_collections import immutable_dict, immutable_list
from kiln.fx.node import Argument, Node, Target
from kiln.fx.traceback import get_current_meta, has_preserved_node_meta
from kiln.layout import layout, memory_format
from kiln.switches import _assert
from kiln.table.callables import name_helpers as _name_helpers

__all__ = [
    "Attribute", "GraphAppendingTracer", "ParameterProxy", "Proxy", "Scope", "ScopeContextManager",
    "StandIn", "TraceError", "TracerBase",
]  # fmt: skip

base_types = (
    str, int, float, bool, complex, bytes, _core.dtype, _core.Tensor, device, memory_format, layout,
    enum.Enum,
)  # fmt: skip


# of a node's metadata, what goes to the nodes that are made while it runs
_HANDED_ON = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")


class TraceError(ValueError):
    """A program does with a traced value what needs the value itself."""


class Scope:
    """The module whose call is traced: its dotted name and its class."""

    def __init__(self, module_path: str, module_type: Any) -> None:
        self.module_path, self.module_type = module_path, module_type


class ScopeContextManager:
    """`with` it, a tracer's scope is another one."""

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        self._scope, self._before = scope, copy.copy(scope)
        scope.module_path, scope.module_type = current_scope.module_path, current_scope.module_type

    def __enter__(self) -> Scope:
        return self._scope

    def __exit__(self, *args: object) -> None:
        self._scope.module_path = self._before.module_path
        self._scope.module_type = self._before.module_type


def _line(frame: FrameType | None) -> str:
    """The program's line for an error."""
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, number).strip()
    return f" ({file}:{number}{': ' if text else ''}{text})"


class TracerBase:
    """Makes nodes of calls and proxies of nodes. `Tracer` is what traces modules and functions."""

    graph: Graph
    record_stack_traces: bool = False
    trace_asserts: bool = False
    proxy_buffer_attributes: bool = False
    check_mutable_operations: bool = False
    traced_func_name: str = "forward"
    scope: Scope
    module_stack: dict[str, Any]
    node_name_to_scope: dict[str, tuple[str, Any]]

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """A new node of the graph, which knows the module whose call it is of."""
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        scope = getattr(self, "scope", None)
        if scope is not None:
            self.node_name_to_scope[node.name] = (scope.module_path, scope.module_type)
        if getattr(self, "module_stack", None):
            node.meta["nn_module_stack"] = copy.copy(self.module_stack)
        if has_preserved_node_meta():
            known = get_current_meta()
            node.meta.update({key: copy.copy(known[key]) for key in _HANDED_ON if key in known})
        return node

    def proxy(self, node: Node) -> Proxy:
        """The proxy of a node."""
        return Proxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:
        """A new node whose arguments may hold proxies, and its proxy."""
        if self.check_mutable_operations and kind == "call_function":
            refuse_writing(target, kwargs)
        args_, kwargs_ = self.create_arg(args), self.create_arg(kwargs)
        node = self.create_node(kind, target, args_, dict(kwargs_), name, type_expr)
        made = proxy_factory_fn(node) if proxy_factory_fn else self.proxy(node)
        if self.record_stack_traces and not node.stack_trace:
            frames = [f for f, _ in traceback.walk_stack(sys._getframe(1)) if not is_own(f)]
            lines = traceback.StackSummary.extract((f, f.f_lineno) for f in reversed(frames))
            node.stack_trace = "".join(lines.format())
        return made

    def create_arg(self, a: Any) -> Argument:
        """An argument with nodes in the place of proxies. NotImplementedError for what a node cannot hold."""
        if isinstance(a, Proxy):
            return a.node
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple):
            items = [self.create_arg(item) for item in a]
            return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
        if isinstance(a, list):
            return immutable_list([self.create_arg(item) for item in a])
        if isinstance(a, dict):
            for key in a:
                self._check_key(key)
            return immutable_dict({key: self.create_arg(item) for key, item in a.items()})
        if isinstance(a, slice):
            return slice(*(self.create_arg(item) for item in (a.start, a.stop, a.step)))
        if isinstance(a, range):
            return range(*(self.create_arg(item) for item in (a.start, a.stop, a.step)))
        if a is None or a is Ellipsis or isinstance(a, base_types):
            return a
        raise NotImplementedError(f"argument of type: {type(a)}")

    def _check_key(self, key: Any) -> None:
        if isinstance(key, Proxy) or (isinstance(key, tuple) and any(isinstance(k, Proxy) for k in key)):
            held = self.create_arg(key)
            raise RuntimeError(
                f"Keys for dictionaries used as an argument cannot contain a Node. Got key: {held}"
            )

    def to_bool(self, obj: Proxy) -> bool:
        """What `bool(proxy)` is asked of. TraceError, but in an `assert` that is traced (`trace_asserts`)."""
        frame = asking()
        if self.trace_asserts and frame is not None and in_assert(frame):
            self.create_proxy("call_function", _assert, (obj, "assertion failed"), {})
            return True
        raise TraceError(
            "symbolically traced variables cannot be used as inputs to control flow" + _line(frame)
        )

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """What `iter(proxy)` is asked of: items where a known number is unpacked (`a, b = x`), else
        TraceError.
        """
        frame = asking()
        count = None if frame is None else _unpacked(frame)
        if count is not None:
            return (obj[k] for k in range(count))
        raise TraceError(
            "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or as a "
            "*args or **kwargs function argument. How often a loop runs is not known while a program is "
            "traced" + _line(frame)
        )

    def keys(self, obj: Proxy) -> Any:
        """What `proxy.keys()` gives: another traced value."""
        return Attribute(obj, "keys")()


def refuse_writing(target: Any, kwargs: dict[str, Any]) -> None:
    """RuntimeError for one of kiln's functions that writes into a tensor that it is given."""
    name = str(getattr(target, "__name__", ""))
    out = kwargs.get("out") is not None
    if isinstance(target, _core.Op) and (out or (name.endswith("_") and not name.endswith("__"))):
        raise RuntimeError(
            f"Tried to trace mutable operation aten::{name}{'.out' if out else ''}. FX only supports "
            "functional code, so operations that mutate operands in-place (e.g. via `out` arguments) are not "
            "supported"
        )


def _instructions(frame: FrameType) -> list[Any]:
    """The instruction that a frame is at, and those behind it."""
    found = list(dis.get_instructions(frame.f_code))
    at = next((k for k, i in enumerate(found) if i.offset == frame.f_lasti), len(found))
    return [i for i in found[at:] if i.opname != "CACHE"]


def _unpacked(frame: FrameType) -> int | None:
    """How many items the line unpacks; None if it does something else."""
    here = _instructions(frame)
    return int(here[0].argval) if here and here[0].opname == "UNPACK_SEQUENCE" else None


def in_assert(frame: FrameType) -> bool:
    here = _instructions(frame)
    return len(here) > 1 and "IF_TRUE" in here[0].opname and here[1].opname == "LOAD_ASSERTION_ERROR"


class GraphAppendingTracer(TracerBase):
    """The tracer of proxies that are made of a graph's nodes by hand: it appends to the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.scope = Scope("", None)
        self.module_stack = {}
        self.node_name_to_scope = {}


class StandIn:
    """What stands for a tensor: operators and kiln's functions of it are told to its tracer."""

    tracer: TracerBase

    if TYPE_CHECKING:  # set below, with the other operators

        def __getitem__(self, key: Any) -> Any: ...

    def __abs__(self) -> Any:
        return self.tracer.create_proxy("call_function", abs, (self,), {})

    @classmethod
    def __torch_function__(cls, orig_method: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What a call of one of kiln's functions with proxies among its arguments gives."""
        kwargs = kwargs or {}
        tracers: dict[Any, None] = {}
        _find_proxies((args, kwargs), lambda p: tracers.setdefault(p.tracer))
        if len(tracers) > 1 and len({id(t.graph) for t in tracers}) > 1:
            raise RuntimeError(
                f"Found multiple different tracers {list(tracers)} while trying to trace {orig_method}"
            )
        tracer = next(iter(tracers))
        if isinstance(orig_method, TensorMethod):
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        return cls._call_of(tracer, orig_method, args, kwargs)

    @classmethod
    def _call_of(cls, tracer: TracerBase, function: Any, args: Any, kwargs: Any) -> Any:
        """The node of a function's call, by a proxy."""
        return tracer.create_proxy("call_function", function, args, kwargs)


class Proxy(StandIn):
    """A value of a traced program: operators, methods, attributes and kiln's functions of it become nodes.

    `Proxy(node)` makes one of a node of a graph; what is done with it is appended there.

    >>> import kiln
    >>> g = kiln.fx.Graph()
    >>> x = kiln.fx.Proxy(g.placeholder("x"))
    >>> kiln.relu(x + 1)
    Proxy(relu)
    """

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    @classmethod
    def _call_of(cls, tracer: TracerBase, function: Any, args: Any, kwargs: Any) -> Any:
        """As PyTorch records it: by the name that the program uses, arguments as it hands them over."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not _take_over.__code__:
            frame = frame.f_back
        caller = None if frame is None else frame.f_back
        called = None if caller is None else calls.place_of_call(function, caller)
        args, kwargs = calls.handed_over(function, called, args, kwargs)
        if called is None:
            return tracer.create_proxy("call_function", function, args, kwargs)
        name = base_name(names.stem(function, called))
        made = tracer.create_proxy("call_function", function, args, kwargs, name)
        made.node._called = called
        return made

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, k: str) -> Any:
        if k in ("node", "tracer"):  # of an object that is being copied
            raise AttributeError(k)
        return Attribute(self, k)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Any:
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        """Another traced value."""
        return self.tracer.keys(self)

    def __len__(self) -> int:
        raise RuntimeError(
            "'len' is not supported in symbolic tracing by default. If you want this call to be recorded, "
            f"please call {names.root()}.fx.wrap('len') at module scope"
        )


class Attribute(Proxy):
    """`proxy.name`: a node of `getattr` if it is used as a value; if it is called, a node of the method."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        if self._node is None:
            made = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {})
            self._node = made.node
        return self._node

    def __getattr__(self, k: str) -> Any:
        if k in ("root", "attr", "_node", "tracer"):
            raise AttributeError(k)
        return Attribute(self, k)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """The proxy of a parameter, whose shape is known (`Tracer(param_shapes_constant=True)`)."""

    def __init__(self, tracer: TracerBase, node: Node, name: str, param: Any) -> None:
        super().__init__(node, tracer)
        self.name, self.param = name, param

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> Any:
        """The parameter's."""
        return self.param.shape

    def size(self, *args: Any) -> Any:
        """The parameter's."""
        return self.param.size(*args)

    def dim(self) -> int:
        """The parameter's."""
        return int(self.param.dim())

    @property
    def ndim(self) -> int:
        """The parameter's."""
        return int(self.param.ndim)

    def numel(self) -> int:
        """The parameter's."""
        return int(self.param.numel())

    def nelement(self) -> int:
        """The parameter's."""
        return int(self.param.numel())


class TensorMethod:
    """A method of a real tensor that was called with a proxy: `tensor + proxy` is a node of "add"."""

    def __init__(self, name: str) -> None:
        self.__name__ = name


_PLAIN: Any = frozenset((int, float, str, bool, type(None), _core.dtype))


def _find_proxies(value: Any, found: Any) -> None:
    if isinstance(value, (list, tuple)):
        for item in value:
            if type(item) not in _PLAIN:
                _find_proxies(item, found)
    elif isinstance(value, StandIn):
        found(value)
    elif isinstance(value, dict):
        _find_proxies(tuple(value.values()), found)
    elif isinstance(value, slice):
        _find_proxies((value.start, value.stop, value.step), found)


# of what can be asked with any object, and is no operation
_OF_ANYTHING = frozenset(("is_tensor", "is_storage", "typename", "__init__", "__new__", "__getattr__"))
_METHODS = {
    "truediv": "div", "floordiv": "__floordiv__", "floor_divide": "__floordiv__", "mod": "remainder",
    "getitem": "__getitem__",
    "and": "__and__", "or": "__or__", "xor": "__xor__", "lshift": "__lshift__", "rshift": "__rshift__",
    "truediv_": "div_", "floordiv_": "__ifloordiv__", "mod_": "remainder_", "and_": "__iand__",
    "or_": "__ior__", "xor_": "__ixor__", "lshift_": "__ilshift__", "rshift_": "__irshift__",
}  # fmt: skip


def _take_over(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], method: str | None) -> Any:
    """A call with proxies among its arguments, as the core hands it over; NotImplemented: it is no operation
    that a program is made of.
    """
    if method is not None:
        function = TensorMethod(_METHODS.get(method, method))
    else:
        name = getattr(function, "__name__", "")
        path = getattr(function, "__qualname__", "") or ""
        if (
            name in _OF_ANYTHING
            or "." in path.rpartition("<locals>.")[2]
            or hasattr(function, "_kiln_helper")
        ):
            return NotImplemented
    capture = STATE.capture
    if capture is not None and _are_of(capture, (*args, *kwargs.values())):
        kind = "call_function" if method is None else "call_method"
        target = function if method is None else function.__name__
        return capture.create_proxy(kind, target, args, kwargs)
    found: list[Any] = []
    _find_proxies((args, kwargs), found.append)
    if not found and capture is not None:
        return capture.plain(function, args, kwargs, sys._getframe(1))
    if not found:
        return NotImplemented
    kinds = tuple(dict.fromkeys(type(p) for p in found))
    # the most derived class is asked, as Python asks the right operand's
    first = next((k for k in kinds if all(issubclass(k, other) for other in kinds)), kinds[0])
    return first.__torch_function__(function, kinds, args, kwargs)


def _are_of(capture: Any, given: tuple[Any, ...]) -> bool:
    """Whether these are what stands for tensors in one capture, and plain values besides: nearly all are."""
    found = False
    for x in given:
        if isinstance(x, StandIn):
            if x.tracer is not capture:
                return False
            found = True
        elif type(x) not in _PLAIN:
            return False
    return found


def _operator(function: Any, reflected: bool = False) -> Any:
    def call(self: Any, *others: Any) -> Any:
        args = (*others, self) if reflected else (self, *others)
        return self.tracer.create_proxy("call_function", function, args, {})

    return call


_REFLECTED = frozenset("add sub mul floordiv truediv mod pow lshift rshift and or xor matmul".split())
for _function in names.INFIX:
    _name = _function.__name__.strip("_")
    setattr(StandIn, f"__{_name}__", _operator(_function))
    if _name in _REFLECTED:
        setattr(StandIn, f"__r{_name}__", _operator(_function, reflected=True))
StandIn.__hash__ = object.__hash__  # type: ignore[method-assign]
_core.set_stand_ins((StandIn,), _take_over)


_name_helpers(globals(), __name__)
_hint_missing(__name__)
