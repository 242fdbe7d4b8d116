"""Calls for the scan of modes: the table's samples, right and deliberately wrong.

    call := a function, and what makes its arguments anew, so that every run writes to tensors of its own

Each sample is called as it is; with one argument replaced (another dtype, shape, layout, a tensor that
requires grad, something that is no tensor, numbers out of range); with `out=` and in place, into tensors that
may and may not be written so. A function without samples is called with a few arguments of the common kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import kiln
from kiln.table import public, record, registry
from kiln.testing.compare import is_tensor
from kiln.testing.op_cases import Case, Entry, tensors

DTYPES = ("float32", "int64", "bool", "float16", "uint8", "float64", "bfloat16", "int32")
AS_IT_IS = "as it is"
OTHERS = ("float32", "int64", "bool", "float16", "float64")  # what one tensor of a call is replaced by
VALUES = (99, -99, 1.5, True, None, "text", (0, 0))  # what a number or a name is replaced by
SAMPLES = 3  # of each function and dtype

# They change what runs after them, read what is not theirs, or give what was in memory before.
LEFT_OUT = ("empty", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_", "set_rng_state",
            "from_numpy", "frombuffer", "to_dlpack", "apply_", "map_", "map2_", "resize_")  # fmt: skip


class Arguments:
    """The arguments of one run, and every tensor whose state is looked at before and after it."""

    def __init__(self, args: Any, kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = list(args), dict(kwargs)
        self.more: list[Any] = []  # the memory behind views

    def tensors(self) -> list[Any]:
        """The tensors given, those in lists too."""
        return [x for arg in (*self.args, *self.kwargs.values()) for x in _flat(arg) if is_tensor(x)]

    def exchange(self, old: Any, new: Any) -> None:
        """Puts one argument in the place of another."""

        def one(arg: Any) -> Any:
            if arg is old:
                return new
            return type(arg)(map(one, arg)) if type(arg) in (list, tuple) else arg

        self.args = list(map(one, self.args))
        self.kwargs = {name: one(arg) for name, arg in self.kwargs.items()}


class Call(NamedTuple):
    """One call, made anew for every run."""

    label: str
    function: Callable[..., Any]
    make: Callable[[], Arguments]
    right: bool = False  # it must not raise


class Unfit(Exception):
    """The arguments are not of a kind that this change is for."""


Change = Callable[[Arguments], None]


def _flat(arg: Any) -> list[Any]:
    return list(arg) if isinstance(arg, (list, tuple)) else [arg]


# ---- other forms of one tensor ----


def _as(dtype: str, x: Any) -> Any:
    return x.to(getattr(kiln, dtype))


def _grown(x: Any) -> Any:
    return kiln.zeros(x.shape[0] + 1, *x.shape[1:], dtype=x.dtype) if x.ndim else kiln.zeros(2, dtype=x.dtype)


def _scalar(x: Any) -> Any:
    return kiln.ones((), dtype=x.dtype)


def _nothing(x: Any) -> Any:
    return kiln.zeros(0, *x.shape[1:], dtype=x.dtype)


def _leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_()


def _strided(x: Any) -> Any:
    """The same values, every second of a wider memory."""
    if not x.ndim:
        raise Unfit
    wide = kiln.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x.detach()
    return wide[..., ::2]


def _transposed(x: Any) -> Any:
    if x.ndim < 2:
        raise Unfit
    return x.detach().transpose(0, -1).contiguous().transpose(0, -1)


def _one_row(x: Any) -> Any:
    """One row of two, taken by a step: a dim of size 1 whose stride is not its neighbours' reach."""
    if not x.ndim or not x.shape[0]:
        raise Unfit
    return kiln.cat([x.detach(), x.detach()])[:: max(x.shape[0], 2)][:1]


def _expanded(x: Any) -> Any:
    if not x.ndim:
        raise Unfit
    return x.detach()[..., :1].clone().expand(x.shape)


def _overlapping(x: Any) -> Any:
    """The shape over memory where neighbouring rows share elements."""
    if x.ndim < 2 or x.numel() == 0 or x.shape[-2] < 2 or x.shape[-1] < 2:
        raise Unfit
    strides = [1] * x.ndim
    return kiln.arange(sum(x.shape)).to(x.dtype).as_strided(tuple(x.shape), tuple(strides))


def _inference(x: Any) -> Any:
    with kiln.inference_mode():
        return x.detach().clone()


def _foreign(x: Any) -> Any:
    return kiln.from_numpy(x.detach().clone().numpy())


def _view_of_leaf(x: Any) -> Any:
    if not x.ndim:
        raise Unfit
    return _leaf(x)[:]


def _view_with_history(x: Any) -> Any:
    if not x.ndim:
        raise Unfit
    return (_leaf(x) * 1)[:]


FORMS: dict[str, Callable[[Any], Any]] = {
    **{dtype: partial(_as, dtype) for dtype in OTHERS},
    "a row more": _grown,
    "0-d": _scalar,
    "no elements": _nothing,
    "a leaf": _leaf,
    "strided": _strided,
    "transposed": _transposed,
    "one row": _one_row,
    "expanded": _expanded,
    "overlapping": _overlapping,
    "in inference mode": _inference,
    "NumPy's": _foreign,
    "a view of a leaf": _view_of_leaf,
    "a view with history": _view_with_history,
    "None": lambda x: None,
    "text": lambda x: "text",
    "a number": lambda x: 1.5,
    "a list": lambda x: [x],
}


def _with_form(position: int, form: str, arguments: Arguments) -> None:
    given = arguments.tensors()
    if position >= len(given):
        raise Unfit
    made = FORMS[form](given[position])
    arguments.exchange(given[position], made)
    if is_tensor(made) and made._base is not None:
        arguments.more.append(made._base)


def _with_value(position: int, value: Any, arguments: Arguments) -> None:
    names: list[Any] = [k for k, arg in enumerate(arguments.args) if _is_plain(arg)]
    names += [k for k, arg in arguments.kwargs.items() if _is_plain(arg)]
    if position >= len(names):
        raise Unfit
    where: Any = arguments.args if isinstance(names[position], int) else arguments.kwargs
    where[names[position]] = value


def _with_floats(arguments: Arguments) -> None:
    """1.0 for 1, which are equal."""

    def one(arg: Any) -> Any:
        if type(arg) in (list, tuple):
            return type(arg)(map(one, arg))
        return float(arg) if type(arg) is int else arg

    arguments.args = list(map(one, arguments.args))
    arguments.kwargs = {name: one(arg) for name, arg in arguments.kwargs.items()}


def _is_plain(arg: Any) -> bool:
    return not any(map(is_tensor, _flat(arg)))


def _shifted(arguments: Arguments) -> None:
    """The second tensor lies one element further in the first one's memory."""
    x, y, *_ = (*arguments.tensors(), None, None)
    if x is None or y is None or x.shape != y.shape or x.numel() < 2 or x.dtype != y.dtype:
        raise Unfit
    memory = kiln.cat([x.flatten(), y.flatten()[:1]])
    arguments.exchange(x, memory[:-1].view(x.shape))
    arguments.exchange(y, memory[1:].view(y.shape))
    arguments.more.append(memory)


def input_changes() -> dict[str, Change]:
    """What is done to the arguments of a call."""
    found: dict[str, Change] = {"numbers as floats": _with_floats, "shifted": _shifted}
    for position in range(2):
        for form in FORMS:
            found[f"tensor {position} {form}"] = partial(_with_form, position, form)
        for value in VALUES:
            found[f"value {position} {value!r}"] = partial(_with_value, position, value)
    return {**found, AS_IT_IS: lambda arguments: None}  # last: a wrong call must not spoil a right one


# ---- where results go ----


def _given_out(form: str, function: Callable[..., Any], arguments: Arguments) -> None:
    """`out=` of the results' kinds, all or the first of them in a form."""
    if "out" in arguments.kwargs:
        raise Unfit
    found = function(*arguments.args, **arguments.kwargs)
    results = [kiln.zeros(y.shape, dtype=y.dtype) for y in _flat(found) if is_tensor(y)]
    if not results:
        raise Unfit
    which = -1 if form.startswith("last ") else 0
    if form:
        results[which] = FORMS[form.removeprefix("last ")](results[which])
    arguments.more += [y._base for y in results if is_tensor(y) and y._base is not None]
    arguments.kwargs["out"] = tuple(results) if isinstance(found, (list, tuple)) else results[0]


def _out_is_input(arguments: Arguments) -> None:
    given = arguments.tensors()
    if not given:
        raise Unfit
    arguments.kwargs["out"] = given[0]


def _out_over_input(arguments: Arguments) -> None:
    """`out=` lies one element further in the first tensor's memory."""
    x, *_ = (*arguments.tensors(), None)
    if x is None or x.numel() < 2:
        raise Unfit
    memory = kiln.cat([x.flatten(), x.flatten()[:1]])
    arguments.exchange(x, memory[:-1].view(x.shape))
    arguments.kwargs["out"] = memory[1:].view(x.shape)
    arguments.more.append(memory)


def out_changes(function: Callable[..., Any]) -> dict[str, Change]:
    """Into what results are written."""
    forms = ("", *FORMS, *(f"last {form}" for form in (*OTHERS, "a row more", "a leaf")))
    found: dict[str, Change] = {f"out {form}": partial(_given_out, form, function) for form in forms}
    return {**found, "out is the input": _out_is_input, "out over the input": _out_over_input}


# ---- calls ----


def _made(case: Case, dtype: str, change: Change) -> Arguments:
    sample = tensors(kiln, case, dtype)
    arguments = Arguments(sample.args, sample.kwargs)
    if dtype not in case.label:  # drawn in float32, as the record names other dtypes
        for x in arguments.tensors():
            if x.is_floating_point():
                arguments.exchange(x, _as(dtype, x))
    change(arguments)
    return arguments


def calls_of(entry: Entry, function: Callable[..., Any], dtype: str) -> Iterator[Call]:
    """The calls of a function of the table in a dtype."""
    drawn = dtype if dtype in entry.dtypes else "float32" if "float32" in entry.dtypes else entry.dtypes[0]
    written = registry.INPLACE.get(entry.name)
    for case in entry.cases(drawn)[:SAMPLES]:
        forms = [("", function, {**input_changes(), **out_changes(function)})]
        if written is not None:
            forms.append(("_", written, input_changes()))
        for mark, called, changes in forms:
            for name, change in changes.items():
                label = f"{case.label} {'in ' + dtype if dtype != drawn else ''}{mark}: {name}"
                right = name == AS_IT_IS and not mark and dtype == drawn and entry.record.public
                yield Call(label, called, partial(_made, case, dtype, change), right)
    if dtype == "float32":
        for n, (args, kwargs, *_) in enumerate(entry.failures()):
            case = Case(tuple(args), dict(kwargs), dtype)
            label = f"{entry.name} failure {n}"
            yield Call(label, function, partial(_made, case, dtype, lambda arguments: None))


def plain_arguments(kinds: str, dtype: str) -> Arguments:
    """x: a tensor, i: positions, l: a list of tensors, n: a number, s: sizes."""

    def one(kind: str) -> Any:
        x = kiln.arange(6).view(2, 3)
        made = {"i": kiln.arange(2), "l": [_as(dtype, x), _as(dtype, x)], "n": 1, "s": (2, 3)}
        return made.get(kind, _as(dtype, x))

    return Arguments(map(one, kinds), {})


PLAIN = ("", "x", "xx", "xn", "xnn", "xs", "xi", "xni", "xnix", "xl", "l", "ln", "n", "nn", "s", "nx")


def plain_calls(name: str, function: Callable[..., Any], dtype: str) -> Iterator[Call]:
    """The calls of a function without samples."""
    for kinds in PLAIN:
        yield Call(f"{name}({kinds}) {dtype}", function, partial(plain_arguments, kinds, dtype))


@cache
def table() -> dict[str, Entry]:
    """What has samples: the ops, and the functions made of them."""
    registry.everything()
    records: list[Any] = [*record.table(), *public.records()]
    return {r.name: Entry(r) for r in records}


def names() -> list[str]:
    """Every function, method and layer of the table."""
    registry.everything()
    known = {*registry.FUNCTIONS, *registry.METHODS, *registry.LAYERS}
    assert {*LEFT_OUT} <= known, f"no longer there: {sorted({*LEFT_OUT} - known)}"
    return sorted(name for name in known if name not in LEFT_OUT and not name.startswith("__"))


def calls(name: str, dtype: str) -> Iterator[Call]:
    """The calls of one name."""
    entries = table()
    found = registry.FUNCTIONS.get(name) or registry.METHODS.get(name) or registry.LAYERS[name]
    if name in entries:
        return calls_of(entries[name], found, dtype)
    if not callable(found) or isinstance(found, type):
        return iter(())
    return plain_calls(name, found, dtype)
