"""Tracing: a function or module is called with proxies, and what it does with them is the graph."""

from __future__ import annotations

import builtins
import inspect
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import leave_out
from kiln.errors import warn
from kiln.fx._compatibility import compatibility as compatibility
from kiln.fx.codegen import PyTreeCodeGen, _PyTreeInfo
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Argument
from kiln.fx.proxy import ParameterProxy, Proxy, Scope, ScopeContextManager, TracerBase, _find_proxies
from kiln.nn import Module as _Module
from kiln.nn import Parameter as _Parameter
from kiln.nn import Sequential as _Sequential
from kiln.nn.module import _Asked
from kiln.switches import _assert
from kiln.table.callables import hide_frames as _hide_frames
from kiln.table.callables import name_helpers as _name_helpers
from kiln.utils import _pytree as pytree

__all__ = ["PH", "PHBase", "ProxyableClassMeta", "Tracer", "is_fx_tracing", "symbolic_trace", "wrap"]

_HAS_VARSTUFF = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
# (namespace, name) of functions that `wrap` was called for
_wrapped: list[tuple[dict[str, Any], str]] = []
_tracing = 0


def is_fx_tracing() -> bool:
    """Whether a program is being traced."""
    return _tracing > 0


is_fx_symbolic_tracing = is_fx_tracing


class PHBase:
    """In `concrete_args`, in the place of what is to be a value of the program."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()


class ProxyableClassMeta(type):
    """Metaclass of classes whose construction with proxies becomes a node."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        found: list[Proxy] = []
        _find_proxies((args, kwargs), found.append)
        if not found:
            return super().__call__(*args, **kwargs)
        return found[0].tracer.create_proxy("call_function", cls, args, kwargs)


class ScriptObject:
    """An object of PyTorch's scripts: none is one."""


def wrap(fn_or_name: str | Callable[..., Any]) -> Any:
    """Says, at the top level of a module, that a function's calls are nodes, and are not looked into; a name
    of that module or a function of it. Also a decorator.

    >>> import kiln
    >>> @kiln.fx.wrap
    ... def norm(x, n):
    ...     return x / len(n)
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise RuntimeError("Unsupported type for global function! Must be either a callable or string name")
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    frame = sys._getframe(1)
    if frame.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    if not any(space is frame.f_globals and name == n for space, n in _wrapped):
        _wrapped.append((frame.f_globals, name))
    return fn_or_name


# what a module's call and a missing attribute of one are without a patch
_orig_module_call = _Module.__call__
_orig_module_getattr = _Asked.__getattr__


class _Patcher:
    """Attributes and names that are others while a program is traced: `with` it, or until `undo()`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._spaces: set[int] = set()

    def patch(self, frame_dict: dict[str, Any], name: str, new_fn: Any, deduplicate: bool = True) -> None:
        """Another value of a name in a namespace."""
        missing = object()
        old = frame_dict.get(name, missing)
        frame_dict[name] = new_fn

        def undo() -> None:
            if old is missing:
                frame_dict.pop(name, None)
            else:
                frame_dict[name] = old

        self._undo.append(undo)

    def patch_method(self, cls: type, name: str, new_fn: Any, deduplicate: bool = True) -> None:
        """Another value of a class's attribute."""
        own = vars(cls).get(name)
        setattr(cls, name, new_fn)
        self._undo.append(lambda: delattr(cls, name) if own is None else setattr(cls, name, own))

    def visit_once(self, thing: Any) -> bool:
        """Whether a namespace is looked through for the first time."""
        seen = id(thing) in self._spaces
        self._spaces.add(id(thing))
        return not seen

    def undo(self) -> None:
        """Everything as it was."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> _Patcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def _autowrap_check(patcher: _Patcher, frame_dict: dict[str, Any], function_ids: set[int]) -> None:
    """Makes nodes of the calls of a namespace's functions that are among those."""
    if patcher.visit_once(frame_dict):
        for name, value in list(frame_dict.items()):
            if name[0] != "_" and callable(value) and id(value) in function_ids:
                patcher.patch(frame_dict, name, _recorded(value))


def _patch_wrapped_functions(patcher: _Patcher) -> None:
    """Makes nodes of the calls of functions that `wrap` was called for."""
    for space, name in _wrapped:
        found = space.get(name, getattr(builtins, name, None))
        if found is not None:
            patcher.patch(space, name, _recorded(found))


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls with proxies are nodes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found: list[Proxy] = []
        _find_proxies((args, kwargs), found.append)
        if not found:
            return function(*args, **kwargs)
        made = found[0].tracer.create_proxy("call_function", function, args, kwargs)
        made.node.meta["is_wrapped"] = True
        return made

    call.__wrapped__ = function  # type: ignore[attr-defined]
    call.__name__ = getattr(function, "__name__", "call")
    return call


class Tracer(TracerBase):
    """What traces: override `is_leaf_module` (which modules' calls stay nodes), `call_module`, `create_node`,
    `create_arg`, `proxy`, `to_bool`, `iter` or `path_of_module` to trace otherwise.

    `autowrap_modules`: Python modules whose functions' calls are nodes (math); `autowrap_functions`: such
    functions; with `param_shapes_constant` parameters' shapes are read while tracing.

    >>> import kiln
    >>> model = kiln.nn.Sequential(kiln.nn.Linear(2, 2), kiln.nn.ReLU())
    >>> [n.op for n in kiln.fx.Tracer().trace(model).nodes]
    ['placeholder', 'call_module', 'call_module', 'output']
    """

    def __init__(
        self,
        autowrap_modules: tuple[ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        super().__init__()
        found = [f for m in autowrap_modules for name, f in vars(m).items() if callable(f) and name[0] != "_"]
        self._autowrap_function_ids = {id(f) for f in (*found, *autowrap_functions)}
        self._autowrap_search = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[Any, str] | None = None
        self.root_module_name = ""
        self.scope = Scope("", None)
        self.module_stack: dict[str, Any] = OrderedDict()
        self.num_calls: dict[str, int] = {}
        self.node_name_to_scope: dict[str, tuple[str, Any]] = {}
        self.tensor_attrs: dict[Any, str] = {}

    # -- what subclasses change ----------------------------------------------------------------------------

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        """Whether a module's call stays one node: of kiln's own layers, but `Sequential`."""
        return type(m).__module__.startswith(("kiln.nn", "torch.nn")) and not isinstance(m, _Sequential)

    def path_of_module(self, mod: Any) -> str:
        """The dotted name of a submodule. NameError if the root has it not."""
        if self.submodule_paths:
            path = self.submodule_paths.get(mod)
            if path is None:
                raise NameError("module is not installed as a submodule")
            return path
        for name, module in self.root.named_modules():
            if module is mod:
                return str(name)
        raise NameError("module is not installed as a submodule")

    def call_module(self, m: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a module's call gives: a node of a leaf, else what `forward(*args, **kwargs)` does."""
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))):
            calls = self.num_calls.get(path, 0)
            self.num_calls[path] = calls + 1
            key = f"{path}@{calls}" if calls else path
            self.module_stack[key] = (path, type(m))
            try:
                if self.is_leaf_module(m, path):
                    return self.create_proxy("call_module", path, args, kwargs)
                return forward(*args, **kwargs)
            finally:
                self.module_stack.pop(key, None)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """What a module's attribute gives: a proxy of a parameter, of a buffer with
        `proxy_buffer_attributes`; else the value.
        """
        if isinstance(attr_val, _Parameter):
            return self._held(attr_val, self.root.named_parameters(), parameter_proxy_cache)
        if self.proxy_buffer_attributes and isinstance(attr_val, _core.Tensor):
            return self._held(attr_val, self.root.named_buffers(), parameter_proxy_cache)
        return attr_val

    def _held(self, value: Any, owned: Any, cache: dict[str, Any]) -> Any:
        for name, own in owned:
            if own is value:
                if name not in cache:
                    more: dict[str, Any] = {}
                    if self.param_shapes_constant:
                        more["proxy_factory_fn"] = lambda n, name=name: ParameterProxy(self, n, name, value)
                    cache[name] = self.create_proxy("get_attr", name, (), {}, **more)
                return cache[name]
        return value

    def create_arg(self, a: Any) -> Argument:
        """An argument of a node: of a parameter, a buffer or another tensor the node of `get_attr`."""
        if isinstance(a, _Parameter):
            for name, own in self.root.named_parameters():
                if own is a:
                    return self.create_node("get_attr", name, (), {})
            raise NameError("parameter is not a member of this module")
        if isinstance(a, _core.Tensor) and isinstance(getattr(self, "root", None), _Module):
            for name, held in self.root.named_buffers():
                if held is a:
                    return self.create_node("get_attr", name, (), {})
            return self.create_node("get_attr", self._tensor_name(a), (), {})
        if isinstance(a, _Module):
            if self.submodule_paths is not None and a in self.submodule_paths:
                return self.create_node("get_attr", self.submodule_paths[a], (), {})
        if issubclass(type(type(a)), ProxyableClassMeta):
            return self.create_node("get_attr", self._tensor_name(a), (), {})
        return super().create_arg(a)

    def _tensor_name(self, value: Any) -> str:
        """Under which name of the root a constant is found: a new one if it has none."""
        known = next(
            (name for own, name in self.tensor_attrs.items() if getattr(own, "value", own) is value), None
        )
        if known is None:
            number = 0
            stem = "_tensor" if isinstance(value, _core.Tensor) else f"_{type(value).__name__}"
            while hasattr(self.root, f"{stem}_constant{number}"):
                number += 1
            known = f"{stem}_constant{number}"
            self.tensor_attrs[_Held(value)] = known
            setattr(self.root, known, value)
        return known

    # -- tracing -------------------------------------------------------------------------------------------

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """The function to call and its arguments, placeholders' proxies: `*args` and `**kwargs` are one
        value each.
        """
        known = inspect.unwrap(root_fn)
        code = getattr(known, "__code__", None)
        if not isinstance(code, CodeType):
            raise AssertionError(f"Expected FunctionType, got {type(known)}")
        total = code.co_argcount + code.co_kwonlyargcount
        own_names = list(code.co_varnames[:total])
        args: list[Any] = []
        rest = own_names
        if is_module:
            if not own_names:
                raise RuntimeError("``self`` argument cannot be part of *args expansion!")
            args, rest = [self.root], own_names[1:]
        signature = inspect.signature(known)
        if isinstance(concrete_args, tuple):
            if len(rest) != len(concrete_args):
                raise RuntimeError(
                    f"Tracing expected {len(rest)} arguments but got {len(concrete_args)} concrete arguments"
                )
            concrete_args = dict(zip(rest, concrete_args))

        def placeholder(name: str, plain: str) -> Any:
            if concrete_args is not None and plain in concrete_args:
                return self._specialized(plain, concrete_args[plain], signature)
            given = signature.parameters[plain].default
            default = () if name[0] == "*" or given is inspect.Parameter.empty else (given,)
            kind = _annotations(known).get(plain)
            return self.create_proxy("placeholder", name, default, {}, type_expr=kind)

        args += [placeholder(name, name) for name in rest]
        more = code.co_flags & _HAS_VARSTUFF
        if code.co_kwonlyargcount or more:
            names = list(code.co_varnames[total:])
            if code.co_flags & inspect.CO_VARARGS:
                name = names.pop(0)
                args.append(placeholder(f"*{name}", name))
            if code.co_flags & inspect.CO_VARKEYWORDS:
                name = names.pop(0)
                args.append(placeholder(f"**{name}", name))
            root_fn = _all_by_place(known, len(args))
        flat, in_spec = pytree.tree_flatten(args)
        if not any(not child.is_leaf() for child in in_spec.children()):
            return root_fn, args
        info = _PyTreeInfo(own_names, in_spec, None)
        codegen = PyTreeCodeGen(info)
        self.graph.set_codegen(codegen)

        def flattened(*leaves: Any) -> Any:
            result = root_fn(*pytree.tree_unflatten(leaves, in_spec))
            out, out_spec = pytree.tree_flatten(result)
            codegen.pytree_info = info._replace(out_spec=out_spec)
            return out

        return flattened, flat

    def _specialized(self, name: str, tree: Any, signature: Any) -> Any:
        """An argument of `concrete_args`: its values are checked when the program runs."""
        count = 0
        parameter = signature.parameters[name]
        default = () if parameter.default is inspect.Parameter.empty else (parameter.default,)

        def leaf(value: Any) -> Any:
            nonlocal count
            count += 1
            made = self.create_proxy("placeholder", f"{name}_{count}", default, {})
            if isinstance(value, PHBase):
                return made
            said = f"{name} has been specialized to have value {value} but got another value"
            if value is None:
                self.create_proxy("call_function", _assert_is_none, (made, said), {})
            elif isinstance(value, (bool, int, float, str, complex, bytes)):
                self.create_proxy("call_function", _assert, (made == value, said), {})
            else:
                warn(
                    f"Was not able to add assertion to guarantee correct input {name} to specialized "
                    "function. It is up to the user to make sure that your inputs match the inputs you "
                    "specialized the function with."
                )
            return value

        return pytree.tree_map(leaf, tree)

    def trace(self, root: Any, concrete_args: Any = None) -> Graph:
        """The graph of a module's `forward`, or of a function; `self.root` is then the module that holds what
        its nodes name. `concrete_args` are values of arguments that are no values of the graph: by name; in
        dicts and lists `PH` stands for those that are. TraceError where the program asks for a value.
        """
        global _tracing
        if isinstance(root, _Module):
            function = getattr(type(root), self.traced_func_name, None)
            if function is None or function is _Module.forward:
                function = root.__dict__.get(self.traced_func_name)
                if function is None:
                    raise NotImplementedError(
                        f'Module [{type(root).__name__}] is missing the required "forward" function'
                    )
                function = _without_self(function)
            self.root = root
            self.root_module_name = type(root).__name__
            self.submodule_paths = {module: name for name, module in root.named_modules()}
        else:
            self.root, function = _Module(), root
        self.graph = Graph(tracer_cls=type(self))
        inner = getattr(inspect.unwrap(function), "__code__", None)
        if inner is not None:
            self.graph._co_fields = {"co_name": inner.co_name, "co_filename": inner.co_filename}
        self.tensor_attrs = {
            _Held(value): f"{prefix}.{name}" if prefix else name
            for prefix, module in self.root.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, _core.Tensor) and not isinstance(value, _Parameter)
        }
        call, args = self.create_args_for_root(function, isinstance(root, _Module), concrete_args)
        patcher = _Patcher()
        _tracing += 1
        try:
            self._patch(patcher, function)
            result = call(*args)
        finally:
            patcher.undo()
            _tracing -= 1
        returned = _annotations(call).get("return")
        self.create_node("output", "output", (self.create_arg(result),), {}, type_expr=returned)
        self.submodule_paths = None
        return self.graph

    def _patch(self, patcher: _Patcher, function: Any) -> None:
        """Modules' calls and parameters, and functions that stay nodes, come here while the program runs."""
        call, cache, ids = _Module.__call__, dict[str, Any](), self._autowrap_function_ids

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            def forward(*args: Any, **kwargs: Any) -> Any:
                return call(module, *args, **kwargs)

            _autowrap_check(patcher, getattr(getattr(module, "forward", module), "__globals__", {}), ids)
            return self.call_module(module, forward, args, kwargs)

        def __getattribute__(module: Any, name: str) -> Any:
            value = object.__getattribute__(module, name)
            if isinstance(value, _core.Tensor):
                return self.getattr(name, value, cache)
            return value

        patcher.patch_method(_Module, "__call__", __call__)
        patcher.patch_method(_Module, "__getattribute__", __getattribute__)
        _patch_wrapped_functions(patcher)
        _autowrap_check(patcher, getattr(inspect.unwrap(function), "__globals__", {}), ids)
        for module in self._autowrap_search:
            _autowrap_check(patcher, vars(module), ids)


class _Held:
    """A tensor as a key, by its identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.value is self.value


def _annotations(function: Any) -> dict[str, Any]:
    """What a program says of its arguments; kiln's own layers say it to type checkers alone."""
    module = getattr(function, "__module__", "") or ""
    own = module == "kiln" or module.startswith("kiln.")
    return {} if own else getattr(function, "__annotations__", {})


def _assert_is_none(value: Any, msg: str) -> None:
    """AssertionError if a value is not None."""
    if value is not None:
        raise AssertionError(msg)


def _all_by_place(function: FunctionType, count: int) -> FunctionType:
    """The function with all its parameters by place, `*args` and `**kwargs` as one each."""
    code = function.__code__.replace(
        co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0,
        co_flags=function.__code__.co_flags & ~_HAS_VARSTUFF,
    )  # fmt: skip
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _without_self(function: Any) -> Any:
    """A `forward` that an object has for itself, as one of its class."""
    inner = getattr(function, "__func__", None)
    if inner is not None:
        return inner

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return forward


def symbolic_trace(root: Any, concrete_args: Any = None) -> GraphModule:
    """A module's `forward`, or a function, as a `GraphModule`: called once with proxies, so that one path
    through it is kept, the same for all inputs. `concrete_args` (by name) are arguments with these values.

    TraceError where the program asks for a value (`if x.sum() > 0`), a length or an iteration.

    >>> import kiln
    >>> m = kiln.fx.symbolic_trace(lambda x, y: kiln.relu(x) @ y)
    >>> print(m.graph)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %y : [num_users=1] = placeholder[target=y]
        %relu : [num_users=1] = call_function[target=kiln.relu](args = (%x,), kwargs = {})
        %matmul : [num_users=1] = call_function[target=operator.matmul](args = (%relu, %y), kwargs = {})
        return matmul
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, _Module) else getattr(root, "__name__", "GraphModule")
    return GraphModule(tracer.root, graph, name)


_hint_missing(__name__)


leave_out(Tracer, "get_fresh_qualname", "names of attributes are the program's own")


_hide_frames(globals(), ("symbolic_trace",))
_name_helpers(globals(), __name__)
