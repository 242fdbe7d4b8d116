"""One run of a function on copies of its tensors: every call of kiln's a node that has its value."""

from __future__ import annotations

import builtins
import operator
import re
import time
from types import FrameType, FunctionType, MethodType
from typing import Any

from kiln import _core
from kiln.absent import asking
from kiln.capture.pure.guards import Place
from kiln.capture.pure.surroundings import Watch
from kiln.errors import is_own, place
from kiln.fx import names
from kiln.fx._symbolic_trace import Tracer
from kiln.fx.graph import Graph
from kiln.fx.node import Node, map_arg
from kiln.fx.proxy import Proxy
from kiln.nn import Module as _Module

__all__ = ["Break", "Capture", "Value", "Watching"]

_METADATA = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size is_contiguous is_floating_point "
    "is_complex is_signed get_device shape ndim dtype device layout requires_grad is_leaf itemsize nbytes "
    "names is_cuda is_cpu is_mps is_sparse is_quantized is_meta is_nested result_type promote_types can_cast "
    "broadcast_shapes is_tensor output_nr is_grad_enabled get_default_dtype __len__ type is_same_size".split()
)
_OF_VALUES = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount repeat_interleave".split()
)


class Break(Exception):
    """What cannot be kept in a graph, and the line."""


def _line() -> str:
    frame = asking()
    return "an unknown line" if frame is None else place(frame.f_code.co_filename, frame.f_lineno)


class Value(Proxy):
    """A tensor of the run: its node, and the copy that the run computed, whose metadata can be asked for."""

    def __init__(self, node: Node | None, tracer: Capture, value: Any, source: Any = None) -> None:
        self.tracer, self.value, self.source = tracer, value, source
        self._node = node

    @property
    def node(self) -> Node:  # type: ignore[override]
        if self._node is None:
            self._node = self.tracer.input_of(self)  # type: ignore[attr-defined]
        return self._node

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        if name in ("tracer", "value", "source", "_node", "node"):
            raise AttributeError(name)
        if name in ("data", "grad", "grad_fn", "_version", "is_pinned", "_backward_hooks"):
            raise Break(f"the attribute {name} of a tensor was asked for at {_line()}")
        found = getattr(self.value, name)
        if isinstance(found, _core.Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        if not callable(found) or isinstance(found, (_core.dtype, _core.Size)):
            if name not in _METADATA:
                raise Break(f"the attribute {name} of a tensor was asked for at {_line()}")
            return found

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.tracer.create_proxy("call_method", name, (self, *args), kwargs)

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("tracer", "value", "source", "_node"):
            raise Break(f"the attribute {name} of a tensor was set at {_line()}")
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        return iter([self[k] for k in range(len(self.value))])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def _read(self, *args: Any) -> Any:
        raise Break(f"a value was read at {_line()}")

    __bool__ = __int__ = __float__ = __index__ = __complex__ = __contains__ = __array__ = _read
    __repr__ = __str__ = __format__ = __dlpack__ = __deepcopy__ = __reduce_ex__ = _read  # type: ignore[assignment]


for _name, _function in {
    f"i{k}": getattr(operator, f"i{k}") for k in "add sub mul truediv pow".split()
}.items():
    setattr(
        Value,
        f"__{_name}__",
        lambda self, other, f=_function: self.tracer.create_proxy("call_function", f, (self, other), {}),
    )


class Watching(Watch):
    """Notes the globals that the code looks up, and stops before what a graph cannot undo."""

    def __init__(self) -> None:
        super().__init__(self._no)
        self.globals: list[Place] = []

    @staticmethod
    def _no(what: str, line: str) -> None:
        raise Break(f"the function {what} at {line}")

    def _called(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and not is_own(frame):
            module = getattr(what, "__module__", None)
            if isinstance(what, type(print)) and what in _OUTSIDE:
                raise Break(
                    f"{what.__name__}() was called at {place(frame.f_code.co_filename, frame.f_lineno)}"
                )
            if module == "time":
                raise Break(f"the time was asked for at {place(frame.f_code.co_filename, frame.f_lineno)}")
        elif event == "call":
            code = frame.f_code
            if is_own(frame) and code.co_name in ("step", "backward", "zero_grad", "grad", "_seed"):
                if "optim" in code.co_filename or "autograd" in code.co_filename:
                    raise Break(f"{code.co_name}() was called at {_line()}")
            known = len(self.codes)
            super()._called(frame, event, what)
            if len(self.codes) > known:  # the program's own code, seen for the first time
                space = frame.f_globals
                self.globals += [Place(space, n, space[n]) for n in code.co_names if n in space]
            return
        super()._called(frame, event, what)

    def _note_object(self, thing: Any) -> None:
        if not issubclass(type(thing), (Proxy, _core.Tensor)):
            super()._note_object(thing)

    def undo(self) -> None:
        """Everything that the run has changed as it was."""
        for key, (thing, before) in self.objects.items():
            if key >= 0 and vars(thing) != before:
                vars(thing).clear()
                vars(thing).update(before)
        for held, before in self._contents.values():
            if isinstance(held, list):
                held[:] = before
            else:
                held.clear()
                held.update(before)


_OUTSIDE = {builtins.print, builtins.input, builtins.open, builtins.id, builtins.globals, time.time}


class Capture(Tracer):
    """One run of a function on copies; see the module's text."""

    def __init__(self) -> None:
        super().__init__(autowrap_modules=())
        self.graph = Graph(tracer_cls=type(self))
        self.root = _Module()
        self.submodule_paths = None
        self.inputs: list[Any] = []  # the tensors, in the order of the placeholders
        self.places: list[Any] = []  # of each: its number among the arguments, or the tensor itself
        self.values: dict[int, Value] = {}
        self.paths: dict[int, str] = {}
        self.lifted: list[Any] = []
        self.kept: list[Any] = []
        self._last: Node | None = None

    def lift(self, tensor: Any, where: Any, path: str) -> Value:
        """What stands for a tensor of the program."""
        known = self.values.get(id(tensor))
        if known is None:
            before = _core.take_all(False)
            copy = tensor.detach().clone()
            if tensor.requires_grad:
                copy.requires_grad_()
                copy = copy if tensor.is_leaf else copy.clone()
            _core.take_all(before)
            known = self.values[id(tensor)] = Value(None, self, copy, (tensor, where, path))
        return known

    def input_of(self, value: Value) -> Node:
        """The placeholder of a tensor of the program, made when it is first used."""
        tensor, where, path = value.source
        before = self.graph._insert
        self.graph._insert = self._last.append if self._last else self.graph._root.append
        name = re.sub(r"\W+", "_", path)
        self._last = node = self.graph.placeholder(name)
        self.graph._insert = before
        self.inputs.append(tensor)
        self.places.append(where)
        node.meta["example_value"] = node.meta["val"] = value.value
        return node

    def create_arg(self, a: Any) -> Any:
        if type(a) is Value:
            return a.node
        if isinstance(a, _core.Tensor):
            self.lifted.append(a)
            return self.lift(a, a, f"L_{self.paths.get(id(a), f'tensor_{len(self.lifted)}')}_").node
        if isinstance(a, (FunctionType, MethodType, type)) or isinstance(a, _Module):
            return a
        if isinstance(a, slice) and any(type(x) is Value for x in (a.start, a.stop, a.step)):
            raise Break(f"a value was read at {_line()}")
        return super().create_arg(a)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:  # fmt: skip
        called = target if isinstance(target, str) else getattr(target, "__name__", "")
        if called in _OF_VALUES or (called == "where" and len(args) == 1) or _masked(called, args):
            raise Break(f"the sizes of what {called} gives depend on values, at {_line()}")
        before = _core.take_all(False)
        try:
            node = self.create_node(
                kind, target, self.create_arg(tuple(args)), dict(self.create_arg(kwargs)), name
            )
            given, named = (map_arg(a, lambda n: n.meta["example_value"]) for a in (node.args, node.kwargs))
            given, named = _plain(given), _plain(dict(named))
            if kind == "call_method":
                result = getattr(given[0], str(target))(*given[1:], **named)
            else:
                result = target(*given, **named)
        except Break:
            raise
        except Exception as error:
            raise Break(f"{called} raised {type(error).__name__} at {_line()}") from error
        finally:
            _core.take_all(before)
        node.meta["example_value"] = node.meta["val"] = result
        self.kept.append(result)
        if _writes(called) and any(result is g for g in given):  # the tensor that was written
            return next(a for a, g in zip(args, given) if g is result)
        return self._shown(node, result, called)

    def _shown(self, node: Node, result: Any, called: str) -> Any:
        """What the program sees of a result."""
        if isinstance(result, _core.Tensor):
            return Value(node, self, result)
        if isinstance(result, (tuple, list)) and any(isinstance(x, _core.Tensor) for x in result):
            items = [
                self.create_proxy("call_function", operator.getitem, (_Whole(node), k), {})
                for k in range(len(result))
            ]
            if isinstance(result, list):
                return items
            return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
        if result is None and called in ("setitem", "__setitem__"):
            return None
        if called not in _METADATA and result is not None and node.all_input_nodes:
            raise Break(f"{called} gave a value at {_line()}")
        if result is None and called != "_assert":
            raise Break(f"{called} was called for what it does at {_line()}")
        if called == "_assert":
            raise Break(f"a value was read at {_line()}")
        self.graph.erase_node(node)
        return result


class _Whole:
    """A node among arguments that are made into nodes."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __fx_create_arg__(self, tracer: Any) -> Node:
        return self.node


def _writes(called: str) -> bool:
    """Whether a function's name says that it writes into its first argument: `add_`, `iadd`."""
    return (called.endswith("_") and not called.endswith("__")) or getattr(
        operator, called, None
    ) in names.IN_PLACE


def _masked(called: str, args: Any) -> bool:
    """Whether elements are chosen by a mask."""
    if called not in ("getitem", "__getitem__", "index_select", "take") or len(args) < 2:
        return False
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(k, _core.Tensor) and k.dtype in (_core.bool, _core.uint8) for k in keys)


def _plain(a: Any) -> Any:
    """Lists and dicts of nodes' arguments as Python's own."""
    if isinstance(a, tuple):
        items = [_plain(x) for x in a]
        return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return [_plain(x) for x in a]
    return {k: _plain(x) for k, x in a.items()} if isinstance(a, dict) else a
