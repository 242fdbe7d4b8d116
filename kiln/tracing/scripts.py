"""What `kiln.jit` gives: functions and modules that are programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.nn import Module
from kiln.tracing.capture import Captured, capture
from kiln.tracing.program import Program


class ScriptModule(Module):
    """A module whose calls are a program; its parameters and buffers are those of the module it was made of."""


class ScriptFunction:
    """A function as a program."""

    def __init__(self, function: Callable[..., Any], captured: Captured) -> None:
        self.captured = captured
        self._program = Program(captured, lambda: self._state)
        self._state = [s.tensor for s in captured.state]
        self.__name__ = getattr(function, "__name__", "traced")
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program(args, kwargs)

    @property
    def graph(self) -> Any:
        """The graph; composites are nodes."""
        return self.captured.graph


class TracedModule(ScriptModule):
    """A module that was traced; see `kiln.jit.trace`."""

    def __init__(self, module: Module, captured: Captured) -> None:
        super().__init__()
        _mirror(self, module)
        self.training = module.training
        self._name = type(module).__name__
        self.captured = captured
        where = dict(_homes(self))
        constants = {s.name: s.tensor for s in captured.state if s.kind == "constant"}
        self._homes = [where.get(s.name) or (constants, s.name) for s in captured.state]
        self._program = Program(captured, lambda: [held[key] for held, key in self._homes])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._program(args, kwargs)

    @property
    def graph(self) -> Any:
        """The graph; composites are nodes."""
        return self.captured.graph

    @property
    def original_name(self) -> str:
        """The name of the class that was traced."""
        return self._name

    def _get_name(self) -> str:
        return self._name


def _mirror(made: Module, module: Module, seen: dict[int, Module] | None = None) -> None:
    """Gives a module the parameters, buffers and modules of another one, each module a new one."""
    seen = {id(module): made} if seen is None else seen
    made._parameters.update(module._parameters)
    made._buffers.update(module._buffers)
    made._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    for name, child in module._modules.items():
        if child is None:
            made._modules[name] = None
            continue
        twin = seen.get(id(child))
        if twin is None:
            twin = seen[id(child)] = ScriptModule()
            twin.training = child.training
            _mirror(twin, child, seen)
        made._modules[name] = twin


def _homes(module: Module) -> list[tuple[str, tuple[dict[str, Any], str]]]:
    found: list[tuple[str, tuple[dict[str, Any], str]]] = []
    for prefix, own in module.named_modules(remove_duplicate=False):
        for held in (own._parameters, own._buffers):
            found += [(f"{prefix}.{key}" if prefix else key, (held, key)) for key in held]
    return found


def trace(
    func: Any,
    example_inputs: Any = None,
    optimize: Any = None,
    check_trace: bool = True,
    check_inputs: Any = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: Any = None,
    _compilation_unit: Any = None,
    example_kwarg_inputs: dict[str, Any] | None = None,
    _store_inputs: bool = True,
    *,
    dynamic_shapes: Any = None,
    on_data: str = "refuse",
) -> Any:
    """See `kiln.jit.trace`."""
    kwargs = dict(example_kwarg_inputs or {})
    args = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    args = () if example_inputs is None else tuple(args)
    before = _core.set_grad_enabled(True)
    try:
        found = capture(func, args, kwargs, dynamic_shapes, on_data=on_data)
    finally:
        _core.set_grad_enabled(before)
    if isinstance(func, Module):
        return TracedModule(func, found)
    return ScriptFunction(func, found)
