"""Calls for the scan of counts: right ones, with one argument replaced by a count that no loop ends at.

    place := the path to one argument or to one part of it: ("size",), (1, 0)

Right calls are the samples of the table; a function without them, a constructor of a layer and every other
public function of a module are called with arguments that their signatures suggest. Exchanged is every
argument as a whole, every integer in a list, a tuple or a slice, all integers of one, the numbers in an
integer tensor, and what a signature lets one give besides; some of it beside tensors without elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial, wraps
from importlib import import_module
from typing import Any, NamedTuple

import kiln
from kiln.table import registry
from kiln.testing import mode_cases
from kiln.testing.compare import is_tensor
from kiln.testing.mode_cases import Arguments
from kiln.testing.op_cases import Case, tensors

COUNTS: dict[str, int] = {
    **{f"2**{n}{m:+d}" if m else f"2**{n}": 2**n + m for n in (31, 63) for m in (-1, 0)},
    **{"2**40": 2**40, "2**62": 2**62, "10**30": 10**30},
    **{"-1": -1, "-2**31": -(2**31), "-2**63": -(2**63), "-2**63-1": -(2**63) - 1, "-10**30": -(10**30)},
}
FEW = ("2**31-1", "2**62", "-2**63")  # beside tensors without elements, in tensors, in what is seldom given
SAMPLES = 3  # of each function
KINDS = (*mode_cases.PLAIN, *"xnnn xnnnn xss xsss xns xsn nnn ns ss sn xxn".split())

MODULES = ("kiln", "kiln.nn", "kiln.nn.functional", "kiln.nn.init", "kiln.nn.utils", "kiln.nn.utils.rnn",
           "kiln.linalg", "kiln.special", "kiln.masked", "kiln.signal.windows", "kiln.optim",
           "kiln.optim.lr_scheduler", "kiln.random", "kiln.utils.data", "kiln.func", "kiln.autograd",
           "kiln.autograd.functional")  # fmt: skip
# They change what runs after them, or print, read and write files.
LEFT_OUT = ("compile", "load", "save", "profile", "set_default_device", "set_default_dtype",
            "set_default_tensor_type", "set_grad_enabled", "set_anomaly_enabled", "set_detect_anomaly",
            "detect_anomaly", "set_num_threads", "set_printoptions")  # fmt: skip

INDEXING = ("__getitem__", "__setitem__")
INPUTS = ((2, 3), (1, 2, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4))  # shapes of what a layer is called with

Place = tuple[Any, ...]


class Call(NamedTuple):
    """One call; its arguments are made when it runs."""

    label: str
    function: Callable[..., Any]
    make: Callable[[], Arguments]
    of_table: bool  # whether it is one of the table's functions: others are programs in Python over tensors


class Right(NamedTuple):
    """Arguments that a function takes, made anew, and what they are called."""

    label: str
    make: Callable[[], Arguments]


def itself() -> list[Any]:
    """A list that contains itself."""
    made: list[Any] = []
    made.append(made)
    return made


# ---- one argument replaced ----


def _parts(arg: Any) -> list[Any]:
    return [arg.start, arg.stop, arg.step] if isinstance(arg, slice) else list(arg)


def _exchanged(arg: Any, place: Place, value: Any) -> Any:
    """An argument with one of its parts replaced."""
    if not place:
        return value
    parts = _parts(arg)
    parts[place[0]] = _exchanged(parts[place[0]], place[1:], value)
    return slice(*parts) if isinstance(arg, slice) else type(arg)(parts)


def _places(arg: Any, place: Place = ()) -> Iterator[Place]:
    """Where integers stand in a list, a tuple or a slice."""
    if type(arg) in (list, tuple, slice):
        for k, part in enumerate(_parts(arg)):
            yield from [(*place, k)] if type(part) is int else _places(part, (*place, k))


def _arguments(given: Arguments) -> dict[Any, Any]:
    return {**dict(enumerate(given.args)), **given.kwargs}


def _put(given: Arguments, place: Place, value: Any) -> None:
    where: Any = given.args if isinstance(place[0], int) else given.kwargs
    old = where[place[0]] if place[0] in _arguments(given) else None
    where[place[0]] = _exchanged(old, place[1:], value)


def _with(right: Callable[[], Arguments], place: Place, value: Any, empty: bool = False) -> Arguments:
    given = right()
    if empty:
        for x in given.tensors():
            given.exchange(x, x.detach()[:0] if x.ndim else x)
    _put(given, place, value() if callable(value) else value)
    return given


def _values(arg: Any) -> dict[str, Any]:
    """What an argument as a whole is replaced by."""
    found: dict[str, Any] = {**COUNTS, "a list of itself": itself}
    if is_tensor(arg):
        found = {name: found[name] for name in (*FEW, "a list of itself")}
        if not arg.is_floating_point() and arg.dtype != kiln.bool:
            made = {f"filled with {name}": partial(_filled, arg, COUNTS[name]) for name in FEW}
            found |= made
    elif type(arg) in (list, tuple) and any(True for _ in _places(arg)):
        same = {f"all {name}": type(arg)([value] * len(arg)) for name, value in COUNTS.items()}
        found = {**same, **{name: found[name] for name in (*FEW, "a list of itself")}}
    elif type(arg) is not int:
        found = {name: found[name] for name in (*FEW, "10**30", "a list of itself")}
    return found


def _filled(x: Any, value: int) -> Any:
    """A tensor of a shape and dtype, full of one count as near as the dtype comes to it."""
    limits = kiln.iinfo(x.dtype)
    return kiln.full_like(x, max(min(value, limits.max), limits.min))


def exchanges(function: Callable[..., Any], right: Right, seldom: bool, of_table: bool) -> Iterator[Call]:
    """The calls that one right call gives; `seldom`: with what its signature names besides."""
    given = _arguments(right.make())
    has_tensors = any(map(is_tensor, (part for arg in given.values() for part in _flat(arg))))
    for key, arg in given.items():
        wanted: list[tuple[Place, dict[str, Any]]] = [((key,), _values(arg))]
        wanted += [((key, *place), COUNTS) for place in _places(arg)]
        for place, values in wanted:
            shown = f"{right.label}: {'/'.join(map(str, place))}"
            for text, value in values.items():
                yield Call(f"{shown} = {text}", function, partial(_with, right.make, place, value), of_table)
                if has_tensors and text in (*FEW, *(f"all {few}" for few in FEW)):
                    make = partial(_with, right.make, place, value, True)
                    yield Call(f"{shown} = {text}, no elements", function, make, of_table)
    for key in _more(function, len(right.make().args), given) if seldom else ():
        more: dict[str, Any] = {few: COUNTS[few] for few in FEW}
        more |= {"10**30": 10**30, "(2**40, 2**40)": (2**40, 2**40), "a list of itself": itself}
        for text, value in more.items():
            make = partial(_with, right.make, (key,), value)
            yield Call(f"{right.label}: {key} = {text}", function, make, of_table)


def _flat(arg: Any) -> list[Any]:
    return list(arg) if isinstance(arg, (list, tuple)) else [arg]


def _more(function: Callable[..., Any], taken: int, given: dict[Any, Any]) -> list[str]:
    """The parameters that a call leaves at their defaults."""
    parameters = _signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [name for name in names[taken:] if name not in given and name != "out"]


# ---- right calls ----


def _sample(case: Case, dtype: str) -> Arguments:
    made = tensors(kiln, case, dtype)
    return Arguments(made.args, made.kwargs)


def _from_table(entry: Any) -> Iterator[Right]:
    dtype = "float32" if "float32" in entry.dtypes else entry.dtypes[0]
    for case in entry.cases(dtype)[:SAMPLES]:
        yield Right(case.label, partial(_sample, case, dtype))


def _guessed(parameters: list[inspect.Parameter]) -> Arguments:
    """What required parameters seem to be: numbers by their annotation, else tensors."""
    args: list[Any] = []
    for p in parameters:
        kind = str(p.annotation)
        is_size = p.name in ("size", "shape", "lengths", "normalized_shape") or "Size" in kind
        guess = [2, 3] if is_size else 2 if "int" in kind else 0.5 if "float" in kind else kiln.ones(2, 3)
        args.append(guess)
    return Arguments(args, {})


def _from_signature(name: str, function: Callable[..., Any]) -> Iterator[Right]:
    signature = _signature(function)
    for kinds in dict.fromkeys(KINDS):
        try:
            signature.bind(*kinds)
        except TypeError:
            continue
        yield Right(f"{name}({kinds})", partial(mode_cases.plain_arguments, kinds, "float32"))
    yield Right(f"{name}(...)", partial(_guessed, _required(signature)))


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """A function's signature; of what does not tell it, one that takes anything."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: None)


def _required(signature: inspect.Signature) -> list[inspect.Parameter]:
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in signature.parameters.values() if p.default is p.empty and p.kind in by_place]


def _layer(kind: Callable[..., Any]) -> Callable[..., Any]:
    """What constructs a layer and calls it."""

    @wraps(kind, updated=())
    def call(*args: Any, **kwargs: Any) -> None:
        layer = kind(*args, **kwargs)
        for shape in INPUTS:
            with suppress(TypeError, ValueError, RuntimeError, IndexError, OverflowError, MemoryError):
                layer(kiln.ones(shape))

    return call


def _constructor(name: str, kind: Callable[..., Any]) -> Iterator[Right]:
    """A class that is constructed of integers, as most layers are, or of what its signature says."""
    required = _required(_signature(kind))
    count = len(required)
    yield Right(f"{name}{(2,) * count}", lambda: Arguments([2] * count, {}))
    yield Right(f"{name}{((2, 2),) * count}", lambda: Arguments([(2, 2)] * count, {}))
    if count:
        yield Right(f"{name}(...)", partial(_guessed, required))
    else:
        yield from _from_signature(name, kind)


def _indices(name: str) -> Iterator[Right]:
    """x[index], or x[index] = 1."""
    step, value = slice(0, 2, 1), [1] if name.endswith("__setitem__") else []
    for index in (1, (1, 2), step, (step, step), [0, 1], ([0], [1]), (None, 1), (..., 1)):
        made = partial(lambda index: Arguments([kiln.ones(4, 4), index, *value], {}), index)
        yield Right(f"{name}({index})", made)


# ---- every name ----


@cache
def _of_table() -> dict[str, Callable[..., Any]]:
    registry.everything()
    return {**{n: _method(f) for n, f in registry.METHODS.items()}, **registry.LAYERS, **registry.FUNCTIONS}


def _others() -> dict[str, Callable[..., Any]]:
    """The public functions and classes of modules that are no functions of the table."""
    known = set(map(id, _of_table().values()))
    found: dict[str, Callable[..., Any]] = {}
    for space in MODULES:
        module = import_module(space)
        for name in sorted(dir(module)):
            value = getattr(module, name, None)
            own = str(getattr(value, "__module__", "")).startswith("kiln") and not name.startswith("_")
            if own and callable(value) and name not in LEFT_OUT and id(value) not in known:
                known.add(id(value))
                is_layer = isinstance(value, type) and issubclass(value, kiln.nn.Module)
                found[f"{space.removeprefix('kiln.')}.{name}"] = _layer(value) if is_layer else value
    return found


def functions() -> dict[str, Callable[..., Any]]:
    """Everything that is called, by name."""
    table = {name: function for name, function in sorted(_of_table().items()) if not name.startswith("__")}
    return {**table, **{f"Tensor.{name}": getattr(kiln.Tensor, name) for name in INDEXING}, **_others()}


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a function, which has a tensor to be asked for it."""

    @wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_tensor(self):
            raise TypeError(f"no tensor: {type(self).__name__}")
        return function(self, *args, **kwargs)

    return call


def _entry(name: str, function: Any) -> Any:
    """What has the samples of a function: itself, what it is another name of, or what it is in place."""
    entries = mode_cases.table()
    if name in entries:
        return entries[name]
    function = getattr(function, "__wrapped__", function)
    plain = [known for known, found in registry.INPLACE.items() if found is function]
    same = [known for known, found in registry.FUNCTIONS.items() if found is function]
    return next((entries[known] for known in (*plain, *same) if known in entries), None)


def calls(name: str, function: Any) -> Iterator[Call]:
    """The calls of one name."""
    entry = _entry(name, function)
    if name.startswith("Tensor."):
        rights = _indices(name)
    elif entry is not None:
        rights = _from_table(entry)
    else:
        is_class = isinstance(getattr(function, "__wrapped__", function), type)
        rights = (_constructor if is_class else _from_signature)(name, function)
    for k, right in enumerate(rights):
        if entry is not None and entry.name != name:
            right = right._replace(label=f"{name} as {right.label}")
        yield from exchanges(function, right, k == 0 or entry is None, name in _of_table())
