"""What programs do with traces beside calling them: several methods, constants for parameters, tasks."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from kiln.absent import leave_out
from kiln.errors import describe, message
from kiln.nn import Module
from kiln.table.callables import helper, hide_frames, name_constructor
from kiln.tracing.captured import State
from kiln.tracing.scripts import ScriptModule, TracedModule, above, check_given
from kiln.tracing.twice import captured_twice


class TracerWarning(Warning):
    """What PyTorch warns of where it keeps a value for ever. A trace here is refused then, or checks it."""


class TopLevelTracedModule(TracedModule):
    """A module of which several methods were traced."""

    def __init__(self, module: Module, methods: dict[str, Any]) -> None:
        super().__init__(module, methods.get("forward") or next(iter(methods.values())))
        self._captures = methods
        self._bind()

    def set_state(self, constants: dict[str, Any]) -> None:
        super().set_state(constants)
        if "_captures" in self.__dict__:
            self._bind()

    def _bind(self) -> None:
        self._methods = {name: (found, self.program_of(found)) for name, found in self._captures.items()}
        for name in self._captures:
            if name != "forward":
                object.__setattr__(self, name, _Method(self, name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if "forward" not in self._methods:
            raise RuntimeError(f"{self._name}: forward was not traced, only {', '.join(self._methods)}")
        return super().forward(*args, **kwargs)


class _Method:
    def __init__(self, module: TopLevelTracedModule, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module._methods[self.name][1](args, kwargs)

    @property
    def graph(self) -> Any:
        """The graph; composites are nodes."""
        return self.module._methods[self.name][0].graph


def trace_module(
    mod: Any,
    inputs: dict[str, Any],
    optimize: Any = None,
    check_trace: bool = True,
    check_inputs: Any = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: Any = None,
    _compilation_unit: Any = None,
    example_inputs_is_kwarg: bool = False,
    _store_inputs: bool = True,
    *,
    dynamic_shapes: dict[str, Any] | None = None,
    on_data: str = "refuse",
) -> Any:
    """A module whose methods are programs: `inputs` has the example of each by its name, a tensor or a tuple
    (with `example_inputs_is_kwarg` a dict of arguments by name). `check_inputs` is a list of such dicts;
    `dynamic_shapes` says which sizes vary, by method. All else as of `kiln.jit.trace`.

    RuntimeError for what no trace would do again; AttributeError for a method that is not there.

    >>> import kiln
    >>> class Scale(kiln.nn.Module):
    ...     def forward(self, x):
    ...         return 2 * x
    ...     def back(self, x):
    ...         return x / 2
    >>> traced = kiln.jit.trace_module(Scale(), {"forward": kiln.ones(2), "back": kiln.ones(2)})
    >>> traced.back(traced(kiln.tensor([1.0, 3.0])))
    tensor([1., 3.])
    """
    if not isinstance(mod, Module):
        raise AttributeError("expected torch.nn.Module as the first argument")
    if not isinstance(inputs, dict):
        raise AttributeError("expected a dictionary of (method_name, input) pairs")
    if not inputs:
        raise RuntimeError("trace_module: no method is named")
    methods: dict[str, Any] = {}
    for name, given in inputs.items():
        function = mod if name == "forward" else getattr(mod, name)
        args = () if example_inputs_is_kwarg else _as_tuple(given)
        kwargs = dict(given) if example_inputs_is_kwarg else {}
        shapes = (dynamic_shapes or {}).get(name)
        methods[name] = captured_twice(function, args, kwargs, shapes, on_data, check_trace, mod)
    made = TopLevelTracedModule(mod, methods)
    for cases in check_inputs or ():
        for name, given in cases.items():
            function = mod if name == "forward" else getattr(mod, name)
            check_given(function, made if name == "forward" else getattr(made, name), given, check_tolerance)
    return made


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


class FrozenModule(TracedModule):
    """A traced module whose parameters and buffers are constants."""

    def __init__(self, module: TracedModule, preserved: list[str]) -> None:
        super().__init__(Module(), module.captured)
        self._name, self.training = module._name, False
        found = self._found = copy(module.captured)
        found.state = [
            State(f"constant{k}", "constant", x.detach().clone()) for k, x in enumerate(module.tensors())
        ]
        found.keep_graph(module.captured)
        self.set_state({s.name: s.tensor for s in found.state})
        for name in preserved:
            object.__setattr__(self, name, getattr(module, name))


def freeze(mod: Any, preserved_attrs: list[str] | None = None, optimize_numerics: bool = True) -> Any:
    """A traced or scripted module with copies of its parameters and buffers as constants: what is trained
    afterwards does not change it, and no gradient goes to them. `preserved_attrs`: attributes that it keeps.

    RuntimeError for what is neither, and for one in training mode; writing a buffer is refused.

    >>> import kiln
    >>> net = kiln.nn.Linear(2, 1).eval()
    >>> frozen = kiln.jit.freeze(kiln.jit.trace(net, kiln.ones(1, 2)))
    >>> list(frozen.parameters())
    []
    """
    if not isinstance(mod, ScriptModule):
        raise RuntimeError(
            "freeze: Freezing expects a ScriptModule as input. Please use torch.jit.script or "
            "torch.jit.trace to script your 'nn.Module'."
        )
    if isinstance(mod, TopLevelTracedModule) and set(mod._methods) != {"forward"}:
        raise NotImplementedError("freeze: kiln freezes modules of which forward alone was traced")
    if mod.training:
        raise RuntimeError(
            "Freezing is currently only implemented for modules in eval mode. Please call .eval() on your "
            "module before freezing."
        )
    if not isinstance(mod, TracedModule):
        return above["freeze"](mod, list(preserved_attrs or ()))
    if any(kind == "state" for kind, _ in mod.captured.mutated):
        raise RuntimeError("freeze: the module writes its buffers: trace it in eval mode")
    return FrozenModule(mod, list(preserved_attrs or ()))


def optimize_for_inference(mod: Any, other_methods: list[str] | None = None) -> Any:
    """A traced or scripted module as it runs fastest: frozen. (Its program is planned as a whole whether
    frozen or not.)

    >>> import kiln
    >>> net = kiln.nn.Linear(2, 1).eval()
    >>> fast = kiln.jit.optimize_for_inference(kiln.jit.trace(net, kiln.ones(1, 2)))
    >>> fast(kiln.ones(1, 2)).shape
    kiln.Size([1, 1])
    """
    if not isinstance(mod, ScriptModule):
        raise RuntimeError(
            "optimize_for_inference expects a ScriptModule as input. Please use torch.jit.script or "
            "torch.jit.trace to script your 'nn.Module'."
        )
    if other_methods:
        raise NotImplementedError("optimize_for_inference: kiln freezes forward alone, not other_methods")
    return mod if isinstance(mod, FrozenModule) else freeze(mod)


class Future:
    """What `fork` gives: a call that was made."""

    def __init__(self, value: Any, error: BaseException | None = None) -> None:
        self._value, self._error = value, error

    def wait(self) -> Any:
        """The result, or the error that the call raised."""
        if self._error is not None:
            raise self._error
        return self._value

    value = wait

    def done(self) -> bool:
        """True: the call was made by `fork`."""
        return True


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
    """Calls a function, and gives what `wait` gets the result of. As in PyTorch outside of scripts the call
    is made here and now.

    >>> import kiln
    >>> task = kiln.jit.fork(kiln.add, kiln.ones(2), 1)
    >>> kiln.jit.wait(task)
    tensor([2., 2.])
    """
    if not callable(func):
        raise TypeError(message("fork", "a function", describe(func)))
    return Future(func(*args, **kwargs))


def wait(future: Future) -> Any:
    """The result of what `fork` began."""
    if not isinstance(future, Future):
        raise TypeError(message("wait", "what jit.fork gives", describe(future)))
    return future.wait()


leave_out(
    Future,
    "add_done_callback set_exception set_result then",
    "the call was made by fork; kiln.futures.Future waits for one",
)
leave_out(TracerWarning, "ignore_lib_warnings", "warnings.filterwarnings leaves them out")


hide_frames(globals(), ("freeze", "optimize_for_inference", "trace_module"))


fork, wait = helper("fork", fork), helper("wait", wait)
name_constructor(TopLevelTracedModule)
