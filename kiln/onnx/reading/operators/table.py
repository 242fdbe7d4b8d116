"""The table of operators: a name of ONNX's -> a function on tensors.

    @operator("Reshape", since=5)
    def _reshape(x: Array, shape: Ints, *, allowzero: int = 0) -> Any: ...

Positional parameters are the node's inputs, in the form that their annotation says; one with a default may be
absent. Keywords are attributes, one without a default must be there, and an attribute that is none of them is
refused. A keyword `opset` is the version of the model's operators, `outputs` how many results are named.
Where a name has several functions, the one with the largest `since` that is not above the version is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.graph.graph import Value as GraphValue
from kiln.onnx.reading.known import Known
from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.weights import Unsigned
from kiln.ops.elementwise.arithmetic import convert

# What an operator is given: a tensor; numbers as Python has them, or sizes; one of them; those with their
# shape; what came, a tensor or `Known`. BY_VALUE: of a tensor the elements are read for it.
Array = Any
Ints = list[Any]
Number = Any
Numbers = Known
Value = Any
BY_VALUE = ("Ints", "Number", "Numbers")
OF_DOMAIN = {"": "", "ai.onnx.preview": "preview.", "ai.onnx.ml": "ml."}


class Operator(NamedTuple):
    """One function of the table."""

    function: Callable[..., Any]
    since: int
    takes: tuple[str, ...]  # what the positional parameters are given
    needed: int  # how many of them must be there
    rest: str  # what further inputs are given, "" where there are none
    keywords: frozenset[str]
    required: frozenset[str]


OPERATORS: dict[str, list[Operator]] = {}


def operator(*names: str, since: int = 1) -> Callable[[Any], Any]:
    """Registers the function of some operators."""

    def register(function: Any) -> Any:
        made = _described(function, since)
        for name in names:
            known = OPERATORS.setdefault(name, [])
            known.append(made)
            known.sort(key=lambda x: x.since)
        return function

    return register


def _described(function: Any, since: int) -> Operator:
    """What a function's parameters say."""
    code, kinds = function.__code__, function.__annotations__
    count, more = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames[: count + more]
    has_rest = bool(code.co_flags & 4)
    takes = tuple(kinds[n].removesuffix(" | None") for n in names[:count])
    rest = kinds[code.co_varnames[count + more]].removesuffix(" | None") if has_rest else ""
    keywords = frozenset(names[count:])
    required = keywords - set(function.__kwdefaults__ or ())
    return Operator(
        function, since, takes, count - len(function.__defaults__ or ()), rest, keywords, required
    )


def found(kind: str, domain: str, version: int) -> Operator | None:
    """The operator of a version."""
    if domain not in OF_DOMAIN:
        return None
    fitting = [x for x in OPERATORS.get(OF_DOMAIN[domain] + kind, ()) if x.since <= version]
    return fitting[-1] if fitting else None


def called(op: Operator, inputs: Sequence[Any], attributes: dict[str, Any], opset: int, outputs: int) -> Any:
    """What the operator gives. UnsupportedError, LoadError for inputs and attributes that it has not."""
    unknown = sorted(set(attributes) - op.keywords | set(attributes) & {"opset", "outputs"})
    if unknown:
        raise UnsupportedError(f"kiln has not its attribute {unknown[0]!r:.80}")
    given = dict(attributes)
    given.update((k, v) for k, v in (("opset", opset), ("outputs", outputs)) if k in op.keywords)
    missing = sorted(op.required - set(given))
    if missing:
        raise LoadError(f"its attribute {missing[0]!r} is missing")
    arrays = list(inputs)
    while arrays and arrays[-1] is None:
        arrays.pop()
    if len(arrays) > len(op.takes) and not op.rest:
        raise UnsupportedError(
            f"kiln knows it with at most {len(op.takes)} inputs, and {len(arrays)} are given"
        )
    if len(arrays) < op.needed or any(x is None for x in arrays[: op.needed]):
        raise LoadError(f"expected at least {op.needed} inputs, got {sum(x is not None for x in arrays)}")
    forms = [*op.takes, *[op.rest] * len(arrays)]
    return op.function(*[as_form(x, form) for x, form in zip(arrays, forms)], **given)


def as_form(value: Any, form: str) -> Any:
    """A value in the form that an operator takes."""
    if value is None or form == "Value":
        return value
    if form == "Array":
        return as_array(value)
    items = as_items(value)
    if form == "Numbers":
        return value if isinstance(value, Known) else Known(kind(value).name, items, value.ndim > 0)
    if form == "Ints":
        return items
    if len(items) != 1:
        raise LoadError(f"expected one number, got {len(items)}")
    return items[0]


def as_array(value: Any) -> Any:
    """A value as a tensor."""
    if isinstance(value, Known):
        return value.array()
    if isinstance(value, Unsigned):
        raise UnsupportedError(f"a tensor is of dtype {value.dtype}, which kiln has not")
    if not isinstance(value, (_core.Tensor, GraphValue)):
        raise LoadError(f"expected an array, got a {type(value).__name__}")
    return value


def kind(x: Array) -> Any:
    """The dtype of a tensor, or of a value of a graph that a loop calls."""
    return getattr(_core, x.dtype) if isinstance(x, GraphValue) else x.dtype


def as_items(value: Any) -> list[Any]:
    """The elements of an array: those of a tensor are read."""
    if isinstance(value, Known):
        return value.items
    if not isinstance(value, _core.Tensor):
        raise LoadError(f"expected numbers, got a {type(value).__name__}")
    found: Any = value.reshape(-1).tolist()
    return list(found)


def cast(x: Array, dtype: Any) -> Array:
    """A tensor, or a value of a graph, in another dtype."""
    return x if kind(x) == dtype else convert(x, dtype.name)


def wide(x: Array) -> Array:
    """A tensor of 16 bits as float32."""
    return cast(x, _core.float32) if kind(x) in (_core.float16, _core.bfloat16) else x


def axis_of(axis: int, ndim: int) -> int:
    """A dim counted from the first."""
    if not -ndim <= axis < max(ndim, 1):
        raise LoadError(f"axis {axis} of an array of {ndim} dims")
    return axis % ndim if ndim else 0


def zeros(shape: Sequence[Any], like: Array) -> Array:
    """Zeros in the dtype of a tensor."""
    return ops.zeros(tuple(shape), dtype=kind(like))
