"""What `kiln.jit` gives: functions and modules that are programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.absent import leave_out
from kiln.errors import describe, message
from kiln.graph.text import text
from kiln.nn import Module
from kiln.table.callables import hide_frames, name_constructor
from kiln.tracing.captured import Captured
from kiln.tracing.program import Program, held_in
from kiln.tracing.recorder import TracingError
from kiln.tracing.settled import settled
from kiln.tracing.trees import flatten

above: dict[str, Callable[..., None]] = {}  # what writes a program, and makes one of text: kiln/scripting's


class ScriptModule(Module):
    """A module whose calls are a program; its parameters and buffers are those of the module it was made
    of.
    """

    def save(self, f: Any, _extra_files: Any = None) -> None:
        """Writes the program into a file, as `kiln.jit.save`."""
        above["save"](self, f, _extra_files)

    def define(self, src: str) -> None:
        """Gives the module the functions of a text as methods."""
        above["define"](self, src)


class ScriptFunction:
    """A function as a program."""

    def __init__(self, function: Callable[..., Any], captured: Captured) -> None:
        self.captured = captured
        self._program = Program(captured, held_in(captured))
        self.__name__ = getattr(function, "__name__", "traced")
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.fast(*args, **kwargs)

    def save(self, f: Any, _extra_files: Any = None) -> None:
        """Writes the program into a file, as `kiln.jit.save`."""
        above["save"](self, f, _extra_files)

    @property
    def graph(self) -> Any:
        """The graph; composites are nodes."""
        return self.captured.graph

    @property
    def code(self) -> str:
        """The graph as text."""
        return text(self.captured.graph)


class TracedModule(ScriptModule):
    """A module that was traced, see `kiln.jit.trace`, or read from a file."""

    def __init__(self, module: Module, captured: Captured, name: str | None = None) -> None:
        super().__init__()
        _mirror(self, module)
        self.training = module.training
        self._name = type(module).__name__ if name is None else name
        self._found = captured
        self.set_state({s.name: s.tensor for s in captured.state if s.kind == "constant"})

    @property
    def captured(self) -> Captured:
        """The program; of the tensors as they are, where it can be."""
        return self._program.current()

    def set_state(self, constants: dict[str, Any]) -> None:
        """Finds where the program's tensors are: in this module and those in it, or among constants."""
        self._constants = constants
        self._program = self.program_of(self._found)

    def program_of(self, captured: Captured) -> Program:
        """What runs a graph with this module's tensors."""
        where = dict(_homes(self))
        self._constants.update((s.name, s.tensor) for s in captured.state if s.kind == "constant")
        homes = [where.get(s.name) or (self._constants, s.name) for s in captured.state]
        return Program(captured, homes)

    def tensors(self) -> list[Any]:
        """The tensors of the program beside its inputs."""
        found: list[Any] = self._program.state()
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = copy.deepcopy(_Parts(self), memo).made
        made = type(self).__new__(type(self))
        Module.__init__(made)
        own = {*made.__dict__, *self._parameters, *self._buffers, *self._modules}
        made.__dict__.update({k: v for k, v in self.__dict__.items() if k not in own})
        made.training = self.training
        for name in _PARTS:
            getattr(made, name).update(getattr(twin, name))
        memo[id(self)] = made
        made.set_state({name: x.detach().clone() for name, x in self._constants.items()})
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.fast(*args, **kwargs)

    @property
    def graph(self) -> Any:
        """The graph; composites are nodes."""
        return self.captured.graph

    @property
    def code(self) -> str:
        """The graph as text."""
        return text(self.captured.graph)

    @property
    def original_name(self) -> str:
        """The name of the class that was traced."""
        return self._name

    def _get_name(self) -> str:
        return self._name


class _Parts:
    """A module's parameters, buffers and modules, for a copy."""

    def __init__(self, module: Module) -> None:
        self.made = Module()
        for name in _PARTS:
            getattr(self.made, name).update(getattr(module, name))


_PARTS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


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
    """A function or module of tensors as a program: what it does for the example inputs, done again for
    others, without its Python; gradients flow, and every value has the bits the function gives.

    `dynamic_shapes` says which sizes vary, by the names of the inputs: `{"x": {0:
    kiln.export.Dim("batch")}}`; the same name is the same size everywhere, `2 * Dim("n") + 1` one that
    follows. `Dim.AUTO` leaves a size to the function: what it needs equal is one size, a number stays one.
    All other sizes, dtypes, and arguments that are no tensors are those of the example, and checked
    at each call. Random numbers are drawn anew, as the function does. A module's trace has its parameters
    and buffers, which it shares.

    Nothing computes while the function is followed, so what reads a value (`if x.sum() > 0`, `item()`) is a
    RuntimeError that names the line; `on_data="check"` keeps the value that it has for the example, also of
    sizes that vary, and checks at each call that it is the same. With `check_trace` it is followed twice:
    RuntimeError where what it does changes.
    `check_inputs` are more inputs for which function and trace are compared, within `check_tolerance`. The
    other arguments are PyTorch's, and change nothing.

    >>> import kiln
    >>> n = kiln.export.Dim("n")
    >>> double = kiln.jit.trace(lambda x: 2 * x, kiln.ones(3), dynamic_shapes={"x": {0: n}})
    >>> double(kiln.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    if on_data not in ("refuse", "check"):
        raise ValueError(message("trace", "on_data 'refuse' or 'check'", describe(on_data)))
    if isinstance(func, (ScriptFunction, TracedModule)):
        return func
    if not callable(func):
        raise TypeError(message("trace", "a function or a module", describe(func)))
    if example_inputs is None and example_kwarg_inputs is None:
        raise RuntimeError(
            "trace: example_kwarg_inputs should be a dict: give example_inputs or example_kwarg_inputs"
        )
    args, kwargs = _example(example_inputs), dict(example_kwarg_inputs or {})
    found = settled(func, args, kwargs, dynamic_shapes, on_data, check_trace)
    made = TracedModule(func, found) if isinstance(func, Module) else ScriptFunction(func, found)
    for given in check_inputs or ():
        check_given(func, made, given, check_tolerance)
    return made


def _example(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def check_given(func: Any, made: Any, given: Any, tolerance: float) -> None:
    """RuntimeError where the function and its trace give other values."""
    args = () if isinstance(given, dict) else _example(given)
    kwargs = given if isinstance(given, dict) else {}
    state = _core.random_state()
    expected: list[Any] = []
    came: list[Any] = []
    flatten(func(*args, **kwargs), expected)
    _core.set_random_state(*state)
    flatten(made(*args, **kwargs), came)
    for k, (a, b) in enumerate(zip(expected, came, strict=True)):
        if not bool(((a - b).abs() <= tolerance + tolerance * a.abs()).all()):
            raise TracingError(f"trace: result {k} differs from the function's for one of check_inputs")


_INSIDE = "kiln's programs are graphs; graph and code show them, save writes them"
leave_out(
    ScriptModule,
    "code code_with_constants dump dump_to_str forward_magic_method get_debug_state getattr graph graph_for "
    "hasattr inlined_graph original_name qualified_name save_to_buffer setattr",
    _INSIDE,
)
leave_out(
    ScriptFunction,
    "get_debug_state graph_for inlined_graph name qualified_name save_to_buffer schema",
    _INSIDE,
)


hide_frames(globals(), ("trace",))


name_constructor(ScriptFunction)
name_constructor(TracedModule)
