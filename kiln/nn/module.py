"""`Module`: a tree of named parameters, buffers and modules with a `forward`.

    _parameters  name -> Parameter or None     trained, in state_dict
    _buffers     name -> Tensor or None        not trained, in state_dict unless not persistent
    _modules     name -> Module or None        children, in order of assignment

The three dicts say what a module owns, in order; each entry is mirrored in the instance's own `__dict__`,
so that reading `self.weight` is an ordinary attribute lookup. The dicts (`Owned`) keep both in step, also
where a program writes to them itself: `model._modules["head"] = Identity()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from kiln import _core, ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.errors import describe, message
from kiln.late import later
from kiln.nn.calls import HOOKS, Calls
from kiln.nn.hooks import registered
from kiln.nn.parameter import Buffer, Parameter, is_lazy
from kiln.nn.state import State

if TYPE_CHECKING:
    from kiln._typed.words import Device
    from kiln.capture.callables import HasForward, P, Result

Self = TypeVar("Self", bound="Module")

_describe = later("kiln.table.mistakes", "describe_layer")
_placement = later("kiln.nn.placement", "placement")

_KINDS = ("_parameters", "_buffers", "_modules")


class Owned(dict[str, Any]):
    """What a module owns of one kind; each entry is also in the module's `__dict__`."""

    def __init__(self, module: Module, entries: Mapping[str, Any] | None = None) -> None:
        super().__init__(entries or {})
        self._module = ref(module)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if (module := self._module()) is not None:
            if not hasattr(type(module), name):  # a method stays: `model.type` beside a child "type"
                module.__dict__[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if (module := self._module()) is not None:
            module.__dict__.pop(name, None)

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self:
            return super().pop(name, *default)
        value = self[name]
        del self[name]
        return value

    # a dict's own would not pass by the methods above
    popitem, clear = MutableMapping.popitem, MutableMapping.clear
    update, setdefault = MutableMapping.update, MutableMapping.setdefault

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy belongs to nobody until `__setstate__` of its module


class _Asked:
    """Base of modules with a `__getattr__` of their own, which ends in `super().__getattr__(name)`, and of
    those whose methods call `self.__getattr__(name)`.

    It is no method of Module: a class that has one pays for it at every attribute, and a module finds what
    it owns without.
    """

    def __getattr__(self, name: str) -> Any:
        for kind in _KINDS:
            if name in self.__dict__.get(kind, ()):
                return self.__dict__[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


class Module(Calls, State):
    """Base of every layer and model: assign parameters and modules in `__init__`, compute in `forward`.

    >>> import kiln
    >>> class Double(kiln.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = kiln.nn.Parameter(kiln.tensor(2.0))
    ...     def forward(self, x):
    ...         return x * self.scale
    >>> [name for name, _ in Double().named_parameters()]
    ['scale']
    """

    training: bool
    T_destination = TypeVar("T_destination", bound=dict[str, Any])  # libraries annotate with it
    call_super_init = False  # whether __init__ passes its arguments on to the next class
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (args or kwargs):
            name = f"{type(self).__name__}.__init__()"
            if kwargs:
                raise TypeError(f"{name} got an unexpected keyword argument '{next(iter(kwargs))}'")
            raise TypeError(f"{name} takes 1 positional argument but {len(args) + 1} were given")
        for kind in _KINDS:
            for name in self.__dict__.get(kind, ()):  # of a module whose __init__ is called again
                del self.__dict__[name]
        self.__dict__.update(
            training=True, _non_persistent_buffers_set=set(),
            _parameters=Owned(self), _buffers=Owned(self), _modules=Owned(self),
        )  # fmt: skip
        self._no_hooks()
        self._no_state_hooks()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    if TYPE_CHECKING:

        def __call__(self: HasForward[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result: ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return self._call_with_hooks(args, kwargs) if self._hooked else self.forward(*args, **kwargs)
            except Exception as error:
                _core.set_handled(_describe(self, args, kwargs, error))
                raise

    # -- what a module owns ---------------------------------------------------------------------------

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Own `param` under `name`; None reserves the name (a layer without bias)."""
        if param is not None and not isinstance(param, Parameter):
            hint = "wrap it in kiln.nn.Parameter"
            raise TypeError(
                f"register_parameter: cannot assign '{type(param).__name__}' object to parameter '{name}' (a "
                f"Parameter or None required); {hint}"
            )
        if param is not None and param.grad_fn is not None:
            hint = "store the leaf and compute from it in forward"
            raise ValueError(
                message(f"register_parameter('{name}')", "a leaf", "a parameter with history", hint)
            )
        self._own("_parameters", name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Own `tensor` under `name` without training it; `persistent=False` keeps it out of state_dict."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"register_buffer: cannot assign '{type(tensor).__name__}' object to buffer '{name}' (a "
                "tensor or None required)"
            )
        self._own("_buffers", name, tensor)
        self._keep(name, persistent)

    def _keep(self, name: str, persistent: bool) -> None:
        """Whether the buffer of a name goes into state_dict."""
        left_out = self._non_persistent_buffers_set
        (left_out.discard if persistent else left_out.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Own `module` as a child under `name`."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(
                f"add_module('{name}'): {ops.typename(module)} is not a Module subclass, which was given as "
                f"{describe(module)}"
            )
        self._own("_modules", name, module)

    add_module = register_module

    def _own(self, kind: str, name: str, value: Any) -> None:
        """Enter `value` in one of the three dicts and in `__dict__`."""
        if not isinstance(name, str):
            raise TypeError(f"{kind.strip('_s')} name should be a string. Got {type(name).__name__}")
        if "_parameters" not in self.__dict__:
            what = {"_parameters": "parameters", "_buffers": "buffers", "_modules": "module"}[kind]
            raise AttributeError(f"cannot assign {what} before Module.__init__() call: '{name}'")
        if not name or "." in name:
            wrong = f'contain ".", got: {name}' if name else 'be empty string ""'
            raise KeyError(f"{kind.strip('_s')} name can't {wrong}")
        owned: dict[str, Any] = self.__dict__[kind]
        if name not in owned and (name in self.__dict__ or hasattr(type(self), name)):
            raise KeyError(f"attribute '{name}' already exists")
        owned[name] = registered(self, kind, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What a copy of a module is given, or a pickle of PyTorch's: what it owns becomes its own."""
        self._no_hooks()
        self._no_state_hooks()
        self.__dict__.update(state)
        for kind in _KINDS:
            self.__dict__[kind] = Owned(self)
            self.__dict__[kind].update(state[kind])
        self._hooked = self._hooked or any(self.__dict__[name] for name in HOOKS)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        codes = {name: getattr(function, "__code__", None) for name, function in own.items()}
        names = {name: code.co_names for name, code in codes.items() if code is not None}
        if "__getattr__" not in own and not any("__getattr__" in used for used in names.values()):
            return
        if not issubclass(cls, _Asked):
            cls.__bases__ = (*cls.__bases__, _Asked)  # what super().__getattr__ and self.__getattr__ find
        used = names.get("__getattr__", ())
        if "__getattr__" in used and "super" not in used:  # Module.__getattr__(self, name): then all have it
            Module.__getattr__ = _Asked.__getattr__  # type: ignore[method-assign,assignment]

    if TYPE_CHECKING:  # buffers, and what `model[0]` has, are known when it runs

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__
        if isinstance(value, Parameter):
            self._assign("_parameters", name, value, self.register_parameter)
        elif isinstance(value, Module):
            self._assign("_modules", name, value, self.register_module)
        elif isinstance(value, Buffer):
            self._assign("_buffers", name, value, self.register_buffer)
            self._keep(name, value.persistent)
        elif "_parameters" in state and name in state["_parameters"]:
            self._replace("_parameters", name, value, "kiln.nn.Parameter")
        elif "_parameters" in state and name in state["_modules"]:
            self._replace("_modules", name, value, "kiln.nn.Module")
        elif "_parameters" in state and name in state["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                self._replace("_buffers", name, value, "kiln.Tensor")
            state["_buffers"][name] = registered(self, "_buffers", name, value)
        else:
            object.__setattr__(self, name, value)

    def _assign(self, kind: str, name: str, value: Any, register: Callable[[str, Any], None]) -> None:
        """`self.name = value` for a value of an owned kind: in place if the name has this kind, else anew."""
        owned = self.__dict__.get(kind)
        if owned is not None and name in owned:
            owned[name] = registered(self, kind, name, value)
            return
        if owned is not None:
            for other in _KINDS:
                self.__dict__[other].pop(name, None)
            self._non_persistent_buffers_set.discard(name)
            self.__dict__.pop(name, None)
            if kind == "_modules":  # of any name, as in PyTorch: a method's too
                owned[name] = registered(self, kind, name, value)
                return
        register(name, value)

    def _replace(self, kind: str, name: str, value: Any, wanted: str) -> None:
        """`self.name = value` where `name` is owned and `value` is not of its kind: only None may come."""
        if value is not None:
            what = {"_parameters": "parameter", "_modules": "child module", "_buffers": "buffer"}[kind]
            kind_ = type(value).__name__
            raise TypeError(f"cannot assign '{kind_}' as {what} '{name}' ({wanted} or None expected)")
        self.__dict__[kind][name] = None

    def __delattr__(self, name: str) -> None:
        owned = [self.__dict__[kind] for kind in _KINDS if name in self.__dict__[kind]]
        self._non_persistent_buffers_set.discard(name)
        for names in owned:
            del names[name]
        if not owned:
            object.__delattr__(self, name)

    # -- walking the tree -----------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct children with their names, each module once."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct children."""
        for _, module in self.named_children():
            yield module

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with dotted names, parents first, each once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                below = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, below, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all below it, each once unless duplicates are kept."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def _named_owned(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        """The tensors of one kind with dotted names, each object once unless duplicates are kept."""
        seen: set[int] = set()
        tree = self.named_modules(None, prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for path, module in tree:
            for name, value in module.__dict__[kind].items():
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its dotted name, a shared one once."""
        return self._named_owned("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter: what an optimizer is given."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every buffer with its dotted name."""
        return self._named_owned("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Every buffer."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; the empty path is this module. Raises AttributeError."""
        found: Any = self
        for name in target.split(".") if target else ():
            if not isinstance(found, Module) or not isinstance(getattr(found, name, None), Module):
                raise AttributeError(f"{type(found).__name__} has no attribute `{name}` (in path '{target}')")
            found = getattr(found, name)
        module: Module = found
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put `module` at a dotted path, in place of what is there; `strict`: AttributeError if nothing is.

        ValueError for an empty path or what is no Module, AttributeError for a path of no modules.

        >>> import kiln
        >>> model = kiln.nn.Sequential(kiln.nn.Linear(2, 3), kiln.nn.ReLU())
        >>> model.set_submodule("1", kiln.nn.Tanh())
        >>> model[1]
        Tanh()
        """
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        held = getattr(parent, name, None)
        if held is None and strict:
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if held is not None and not isinstance(held, Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found = module._parameters.get(name)
        if found is None:
            if not hasattr(module, name):
                kind = type(module).__name__
                raise AttributeError(f"{kind} has no attribute `{name}` (in path '{target}')")
            raise AttributeError(f"`{name}` is not an nn.Parameter (in path '{target}')")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer '{target}'")
        return found

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module, children before parents."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # -- modes and conversions ------------------------------------------------------------------------

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode here and below: what dropout and its like ask."""
        if not isinstance(mode, bool):
            raise ValueError(f"train: training mode is expected to be boolean, got {describe(mode)}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: Self) -> Self:
        """Leave training mode here and below."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Train the parameters, or freeze them."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the parameters' gradients, or fill them with zeros."""
        for param in self.parameters():
            if param.grad is None:
                continue
            if set_to_none:
                param.grad = None
            else:
                param.grad = param.grad.detach()
                param.grad.zero_()

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the memory of every parameter, gradient and buffer; parameters keep their identity."""
        for module in self.children() if recurse else ():
            module._apply(fn)
        for param in self._parameters.values():
            if param is not None:
                _convert_parameter(param, fn)
        for name, buffer in self._buffers.items():
            if buffer is not None and is_lazy(buffer):
                buffer.data = fn(buffer.data)
            elif buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to_empty(self: Self, *, device: Device | None, recurse: bool = True) -> Self:
        """Give parameters and buffers memory of `device` with any values in it, of the same shapes and
        dtypes.

        For who fills them at once: `load_state_dict`, `reset_parameters`.
        """
        return self._apply(lambda x: ops.empty_like(x, device=device), recurse)

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device, convert floating tensors to a dtype; to(tensor) takes both from it.

        `memory_format` is for tensors of 4 or 5 dims.
        """
        place = _placement(args, kwargs)

        def convert(x: Tensor) -> Tensor:
            y = x if place.device is None else x.to(device=place.device)
            y = y.to(memory_format=place.format) if place.format is not None and x.ndim in (4, 5) else y
            return y.to(place.dtype) if place.dtype is not None and y.dtype.is_floating_point else y

        return self._apply(convert)

    def type(self: Self, dst_type: _core.dtype | str) -> Self:
        """Convert every parameter and buffer, integers too, to a dtype."""
        return self._apply(lambda x: x.type(dst_type))

    def cpu(self: Self) -> Self:
        """Move to main memory."""
        return self.to(device="cpu")

    def cuda(self: Self, device: Any = None) -> Self:
        """Move to a GPU: AssertionError if there is anything to move, as of a PyTorch without CUDA."""
        return self._apply(lambda x: x.cuda(device))

    def xpu(self: Self, device: Any = None) -> Self:
        """Move to one of Intel's GPUs: AssertionError if there is anything to move."""
        return self._apply(lambda x: x.xpu(device))

    def ipu(self: Self, device: Any = None) -> Self:
        """Move to an accelerator of Graphcore's: RuntimeError if there is anything to move."""
        return self._apply(lambda x: x.ipu(device))  # type: ignore[attr-defined,unused-ignore]

    def mtia(self: Self, device: Any = None) -> Self:
        """Move to one of Meta's accelerators: AssertionError if there is anything to move."""
        return self._apply(lambda x: x.mtia(device))  # type: ignore[attr-defined,unused-ignore]

    def float(self: Self) -> Self:
        """Convert floating tensors to float32."""
        return self.to(_core.float32)

    def double(self: Self) -> Self:
        """Convert floating tensors to float64."""
        return self.to(_core.float64)

    def share_memory(self: Self) -> Self:
        """Shares the memory of every parameter and buffer with other processes (`Tensor.share_memory_`)."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    def half(self: Self) -> Self:
        """Convert floating tensors to float16."""
        return self.to(_core.float16)

    def bfloat16(self: Self) -> Self:
        """Convert floating tensors to bfloat16."""
        return self.to(_core.bfloat16)

    # -- printing -------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands between the parentheses of a layer's repr."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        below = [f"({name}): {_indented(text)}" for name, text in self._below()]
        if len(lines) == 1 and not below:
            return f"{self._get_name()}({lines[0]})"
        if not lines and not below:
            return f"{self._get_name()}()"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + below) + "\n)"

    def _below(self) -> list[tuple[str, str]]:
        """The modules below, by what they are called, as text."""
        return [(name, repr(module)) for name, module in self._modules.items()]


def _indented(text: str) -> str:
    """`text` with every line but the first moved two columns in."""
    return text.replace("\n", "\n  ")


@no_grad()
def _convert_parameter(param: Parameter, convert: Callable[[Tensor], Tensor]) -> None:
    """Give a parameter, and its gradient, converted memory."""
    grad = param.grad
    param.data = convert(param.data)
    if grad is not None:
        param.grad = convert(grad.detach()).requires_grad_(grad.requires_grad)
