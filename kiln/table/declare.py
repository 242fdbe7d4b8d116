"""What entries of the table share: public functions, NumPy references, samples, errors, number helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from kiln import _core
from kiln.errors import message
from kiln.graph import graph as g
from kiln.graph.size import Size, product
from kiln.table import record, registry
from kiln.table.kinds import COMPUTE
from kiln.table.record import ALIASES, NOTHING_MORE, Failure, Op, Sample, Samples
from kiln.table.record import Tests as Tests

_PYTHON = {bool: "bool", int: "int64", float: "float64"}
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


class Function:
    """What tests and docs know of a public function: the part of an op's record that plain Python needs.

    Without `samples` it is for the docs alone. `reads`: it looks at values, so that it ends a recording and
    has no graph. `needs`: an optional module that it, or its derivative, calls. `differs`: from PyTorch's.
    `tests`: see `record.Tests`.
    """

    __slots__ = (
        "differentiable",
        "differs",
        "doc",
        "dtypes",
        "failures",
        "function",
        "name",
        "needs",
        "reads",
        "reference",
        "samples",
        "tests",
    )
    kind = "function"
    public = True

    def __init__(self, name: str, function: Callable[..., Any], settings: dict[str, Any]) -> None:
        self.name, self.function = name, function
        self.doc: str = settings.pop("doc")
        self.samples: Samples | None = settings.pop("samples", None)
        self.reference: Callable[..., Any] | None = settings.pop("reference", None)
        self.failures: Callable[[], list[Failure]] | None = settings.pop("failures", None)
        self.dtypes: str = settings.pop("dtypes", "all")
        self.differentiable: bool = settings.pop("differentiable", True)
        self.reads: bool = settings.pop("reads", False)
        self.needs: str = settings.pop("needs", "")
        self.differs: str = settings.pop("differs", "")
        self.tests: Tests = settings.pop("tests", NOTHING_MORE)
        assert not settings, f"{name}: unknown settings {sorted(settings)}"

    @property
    def method(self) -> bool:
        """Whether tensors have it."""
        return self.name in registry.METHODS

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call on graph values."""
        return self.function(*args, **kwargs)


FACTS: dict[str, Function] = {}  # those of every public function that states any


def records() -> list[Function]:
    """Those with samples: what the harness tests besides ops. All families are imported for it."""
    registry.everything()
    return [fact for fact in FACTS.values() if fact.samples is not None]


def public(
    name: str,
    method: bool = True,
    inplace: bool = False,
    plain: Op | None = None,
    layer: bool = False,
    raw: bool = False,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a plain function the public `name` (and a method of tensors; and the in-place method `name_`).

    An in-place form calls the function with `out=` the tensor. `plain` is the op the function calls when it
    is given that op's parameters by place and nothing else: then the call stays in C++. `layer`: it is one
    of kiln.nn.functional. `raw`: it takes data, so that a NumPy integer is not made an int. `settings` are
    facts for the docs; with samples among them it is a record of the harness: see `Function`.
    """

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        space, _, short = name.rpartition(".")
        if not hasattr(function, "__kiln_name__"):
            function.__name__ = function.__qualname__ = short  # as errors and help call it
            function = _with_aliases(function)
            function.__kiln_name__ = name  # type: ignore[attr-defined]
        shown: Any = _core.Function(function, raw, *_flags(function))
        written: Any = (
            _core.Function(_in_place(name, function), False, *_flags(function)) if inplace else None
        )
        if plain is not None:
            shown = plain.handle.form(shown)
            written = written and plain.handle.form(written, True)
        registry.register(name, shown, method and not space, layer, written)
        if settings:
            FACTS[name] = Function(name, shown, {"doc": function.__doc__ or "", **settings})
        return function

    return make


def _flags(function: Any) -> tuple[Any, ...]:
    """What the core needs to know of a function's flags (True or False by default, or annotated so): how
    many parameters are given by place; of each of these its name if it is a flag, else None; the other flags.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code, defaults = function.__code__, function.__defaults__ or ()
    places, by_name = code.co_argcount, function.__kwdefaults__ or {}
    values = [None] * (places - len(defaults)) + list(defaults)
    said = {n for n, text in function.__annotations__.items() if text in ("bool", "bool | None")}
    parameters = zip(code.co_varnames, values)
    names = [n if isinstance(v, bool) or n in said else None for n, v in parameters]
    named = code.co_varnames[places : places + code.co_kwonlyargcount]
    others = [n for n in named if isinstance(by_name.get(n), bool) or n in said]
    return (places, (*names, *others)) if others or any(names) else ()


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place form of a function: its result is written into its first argument, which is returned."""

    def written(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs, out=self)

    written.__name__ = written.__qualname__ = f"{name}_"
    written.__doc__, written.__wrapped__ = record.in_place_doc(name), function  # type: ignore[attr-defined]
    written.__kiln_name__ = f"{name}_"  # type: ignore[attr-defined]
    return written


def _with_aliases(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also takes arguments by their other names (`axis` for `dim`), if it has a dim: of
    those without one a call is too short for a layer more.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    others = {alias: name for alias, name in ALIASES.items() if name in names and alias not in names}
    if not others.keys() & {"axis", "keepdims"}:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        for alias in others.keys() & kwargs.keys() if kwargs else ():
            if others[alias] in kwargs:
                raise TypeError(f"{name}() got multiple values for argument '{others[alias]}'")
            kwargs[others[alias]] = kwargs.pop(alias)
        return function(*args, **kwargs)

    name = call.__name__ = call.__qualname__ = function.__name__
    call.__doc__, call.__wrapped__ = function.__doc__, function  # type: ignore[attr-defined]
    return call


def alias(name: str, of: str, method: bool = True, inplace: bool = False) -> None:
    """Makes `name` another name of the public function `of`."""
    written = registry.INPLACE[of] if inplace else None
    registry.register(name, registry.FUNCTIONS[of], method, written=written)


def methods(functions: dict[str, Callable[..., Any]]) -> None:
    """Makes functions methods of tensors that are no functions of kiln's namespace."""
    for name, function in functions.items():
        plain = isinstance(function, FunctionType) and name[0] != "_"
        registry.METHODS[name] = named(name, function) if plain else function


def named(name: str, function: Any, raw: bool = True) -> Any:
    """A function in Python as a callable of the core, whose errors name `name`."""
    if not hasattr(function, "__kiln_name__"):
        function.__kiln_name__ = name
    return _core.Function(function, raw, *(() if name[0] == "_" else _flags(function)))


def name_all(namespace: dict[str, Any], module: str) -> None:
    """Makes what a module defines callables of the core: public functions, constructors of public classes."""
    for name, value in tuple(namespace.items()):
        if name[0] == "_" or getattr(value, "__module__", None) is None:
            continue
        if not value.__module__.startswith(module):
            continue
        if isinstance(value, FunctionType):
            namespace[name] = named(name, value, raw=False)
        elif isinstance(value, type):
            name_constructor(value)


def hide_frames(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Makes functions callables of the core whose errors keep their words, but show no lines of kiln's."""
    for name in names:
        namespace[name] = _core.Function(namespace[name], True)


def name_constructor(made: type) -> None:
    """Makes the constructor of a class a callable of the core, whose errors name the class."""
    for own in made.__mro__:
        if not own.__module__.startswith("kiln.") or own.__name__ == "Module":
            continue
        begin, make = vars(own).get("__init__"), vars(own).get("__new__")
        if isinstance(begin, FunctionType):
            own.__init__ = named("__init__", begin)  # type: ignore[misc]
        if isinstance(make, staticmethod):
            own.__new__ = staticmethod(named("__new__", make.__func__))  # type: ignore[method-assign]


def is_value(x: Any) -> bool:
    """Whether x is a value of a graph under construction (and not a tensor or a number)."""
    return isinstance(x, g.Value)


MOST_RESULTS = 1 << 24  # tensors that one call gives, or places that it lists: gigabytes
MOST_STEPS = 1 << 20  # ops that one call consists of: seconds


def expect_count(op: str, count: Any, what: str, most: int = MOST_RESULTS) -> None:
    """RuntimeError for a count that a loop would not come to the end of; asked before the loop."""
    if isinstance(count, int) and count > most:
        raise RuntimeError(message(op, f"at most {most} {what}", f"{count:.3g}" if count < 1e300 else "more"))


def has_values(x: Any) -> bool:
    """Whether an array can be looked at, as a value of a graph and a sample of a batch (kiln.func) cannot."""
    return not isinstance(x, g.Value) and not hasattr(type(x), "whole")


def fitting(value: Any, dtype: str) -> Any:
    """A number as the nearest kind that `dtype` holds; RuntimeError for one that overflows it."""
    _core.check_in_range(value, dtype)
    if dtype == "bool" and hasattr(type(value), "__float__"):  # what is no number is refused where it goes
        return bool(value)
    return int(value) if dtype in INTEGERS and isinstance(value, float) else value


def numbers_of(value: Any, what: str) -> tuple[Any, ...]:
    """One number or a sequence of them as a tuple; True counts as 1, TypeError for a text."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"argument '{what}' must be int or a tuple of ints, not {type(value).__name__}")
    given = value if isinstance(value, Sequence) else (value,)
    return tuple(int(n) if isinstance(n, bool) else n for n in given)


def is_float(x: Any) -> bool:
    """Whether a tensor or a value of a graph holds floats."""
    dtype = x.dtype
    return dtype.startswith(("float", "bfloat")) if isinstance(dtype, str) else bool(dtype.is_floating_point)


def run(op: Op, *args: Any, **kwargs: Any) -> Any:
    """A call of an op without array inputs: a node of the graph under construction, or a tensor."""
    return op.trace(args, kwargs) if g.capturing() else op.handle(*args, **kwargs)


def into(out: Any) -> dict[str, Any]:
    """The keyword `out=` of a call, if there is one."""
    return {} if out is None else {"out": out}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype given as an object, a name, or one of Python's bool, int, float. TypeError for
    what kiln has no dtype of.
    """
    if isinstance(dtype, _core.dtype):
        return dtype.name
    name = _PYTHON.get(dtype, "") if isinstance(dtype, type) else str(dtype).rpartition(".")[2]
    if name not in COMPUTE:
        raise TypeError(message("dtype", "one of kiln's dtypes", repr(dtype)))
    return name


def number(x: g.Value, value: Any) -> g.Value:
    """A literal or a size as a number of x's graph."""
    return record.constant(x.graph, value)


def numel(shape: Any) -> Any:
    """How many elements a shape holds, as an int or a size."""
    return product(tuple(shape))


def count_of(x: g.Value, dims: tuple[int, ...]) -> g.Value:
    """The number of elements in some dims of x, as a number of its graph."""
    return number(x, product(tuple(x.shape[d] for d in dims)))


def broadcast_shape(x: Any, y: Any, op: str) -> tuple[int, ...]:
    """The shape two tensors broadcast to; RuntimeError if they do not."""
    a, b = tuple(x.shape), tuple(y.shape)
    ndim = max(len(a), len(b))
    a, b = (1,) * (ndim - len(a)) + a, (1,) * (ndim - len(b)) + b
    for k, (m, n) in enumerate(zip(a, b)):
        if m != n and 1 not in (m, n):
            raise RuntimeError(
                f"{op}: The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton "
                f"dimension {k}"
            )
    return tuple(n if m == 1 else m for m, n in zip(a, b))


def is_symbolic(shape: Any) -> bool:
    """Whether any size of a shape is not known as an int."""
    return any(isinstance(d, Size) for d in shape)


def default_float() -> str:
    """The name of the default float dtype."""
    return str(_core.default_dtype_name())


def type_name(dtype: str) -> str:
    """A dtype as PyTorch's messages name it: "Float" for float32."""
    return {
        "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
        "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
    }[dtype]  # fmt: skip


def reference(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy reference from a function whose first parameter is the numpy module, imported at the first
    call.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):
            return function(np, *args, **kwargs)

    return call


def numpy(name: str) -> Callable[..., Any]:
    """The NumPy function `name` as a reference."""
    return reference(lambda np, *args, **kwargs: getattr(np, name)(*args, **kwargs))


def floats(name_or_function: Any) -> Callable[..., Any]:
    """A reference (NumPy's name, or a function of numpy and arrays) of a float function: others as float32
    first.
    """

    def call(np: Any, x: Any) -> Any:
        x = np.asarray(x)
        x = x if x.dtype.kind == "f" else x.astype("float32")
        return (
            getattr(np, name_or_function)(x) if isinstance(name_or_function, str) else name_or_function(np, x)
        )

    return reference(call)


def held(dtype: str) -> str:
    """The NumPy dtype a reference computes `dtype` in: float32 for bfloat16, which NumPy lacks."""
    return "float32" if dtype == "bfloat16" else dtype


def array(rng: Any, shape: tuple[int, ...], dtype: str, low: float = -3.0, high: float = 3.0) -> Any:
    """Random values of a dtype in [low, high): integers are drawn as such; bfloat16 comes as float32."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype("bool")
    if dtype in INTEGERS:
        low, high = (max(low, 0.0), max(high, 4.0)) if dtype == "uint8" else (low, high)
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(held(dtype))


def dividends(np: Any, last: float, by: float) -> Any:
    """Numbers of either sign, and what they are divided by, of either sign: 0 and -0 among them."""
    return np.array([-7.5, 7.5, 0.0, -0.0, last]), np.array([2.0, -2.0, 3.0, 3.0, by])


def distinct(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Values of a numeric dtype, no two equal."""
    count = 1
    for size in shape:
        count *= size
    places = rng.permutation(count).reshape(shape)
    return (places if dtype in INTEGERS else places / 4 - 5).astype(held(dtype))


def unary(low: float = -3.0, high: float = 3.0) -> Samples:
    """Samples of a function of one array: rows, a larger flat array, 0-d and empty."""
    shapes = ((3, 5), (37,), (), (0, 4), (2, 1, 3))
    return lambda rng, dtype: [Sample((array(rng, s, dtype, low, high),)) for s in shapes]


def binary(
    low: float = -3.0, high: float = 3.0, low2: float | None = None, high2: float | None = None
) -> Samples:
    """Samples of a function of two arrays that broadcast."""
    pairs = (((3, 5), (3, 5)), ((4, 1), (1, 6)), ((2, 3, 4), (4,)), ((), (5,)), ((0, 3), (3,)))
    second = (low if low2 is None else low2, high if high2 is None else high2)
    return lambda rng, dtype: [
        Sample((array(rng, a, dtype, low, high), array(rng, b, dtype, *second))) for a, b in pairs
    ]


def samples(*makers: Callable[[Any, str], Any]) -> Samples:
    """Samples from functions of (rng, dtype) that each give (args, kwargs)."""
    return lambda rng, dtype: [Sample(*make(rng, dtype)) for make in makers]


def failures(
    *cases: tuple[tuple[Any, ...], dict[str, Any], type[Exception], str],
) -> Callable[[], list[Failure]]:
    """Calls that must fail: (args, kwargs, error, match); a tuple of ints wrapped in `Zeros` is an array of
    zeros.
    """
    return lambda: [
        Failure(tuple(map(_filled, args)), kwargs, error, match) for args, kwargs, error, match in cases
    ]


class Zeros:
    """An array of zeros in a declared failure, made when it is asked for."""

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, *shape: int, dtype: str = "float32", value: float = 0) -> None:
        self.shape, self.dtype, self.value = shape, dtype, value


def _filled(x: Any) -> Any:
    if isinstance(x, list):
        return [_filled(v) for v in x]
    if not isinstance(x, Zeros):
        return x
    import numpy as np

    return np.full(x.shape, x.value, x.dtype)


def not_broadcastable() -> list[Failure]:
    """The failure of an op of two arrays that broadcast."""
    return failures(((Zeros(2, 3), Zeros(2, 4)), {}, RuntimeError, "must match the size"))()
