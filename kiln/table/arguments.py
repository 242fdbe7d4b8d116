"""What entries ask of the arguments of a call, tensors and graph values alike: dtypes, shapes, numbers."""

from __future__ import annotations

from _thread import _local, allocate_lock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kiln import _core
from kiln.errors import message
from kiln.graph import graph as g
from kiln.graph.size import Size, product
from kiln.table import record
from kiln.table.kinds import COMPUTE
from kiln.table.record import Op

_PYTHON = {bool: "bool", int: "int64", float: "float64"}

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


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
    """Whether an array can be looked at, as a value of a graph, a sample of a batch (kiln.func) and what is
    traced cannot.
    """
    return not isinstance(x, g.Value) and not hasattr(type(x), "whole") and not _traced.depth


def may_expect(x: Any) -> bool:
    """Whether `expect` may be asked about an array: where it has values, or a program will have them."""
    return not isinstance(x, g.Value) and (recorder_here(x) is not None or not hasattr(type(x), "whole"))


class _Traced(_local):
    """Of a thread: how many functions it traces, one inside the other."""

    depth = 0
    recorder: Any = None  # who follows the innermost
    follower: Any = None  # who follows what is called, a trace's recorder or a cell's tracer


_traced = _Traced()
# how many traces there are, of all threads: calls that the core would run by itself are made in Python
# while there is one, for its recorder to follow
TRACES = {"now": 0}
_counting = allocate_lock()


def _count_trace(more: int) -> None:
    with _counting:
        TRACES["now"] += more


@contextmanager
def without_values(recorder: Any = None) -> Iterator[None]:
    """Where tensors have no values (kiln.tracing), and `recorder` follows what is called."""
    before = _traced.recorder
    _traced.depth += 1
    _traced.recorder = recorder
    _count_trace(1)
    try:
        with followed(recorder):
            yield
    finally:
        _traced.depth -= 1
        _count_trace(-1)
        _traced.recorder = before


@contextmanager
def followed(follower: Any) -> Iterator[None]:
    """Where `follower` is told of what is more than calls of ops: `applied` of autograd.Functions."""
    before, _traced.follower = _traced.follower, follower
    try:
        yield
    finally:
        _traced.follower = before


def follower_here() -> Any:
    """Who follows what this thread calls, with values or without; None where nobody does."""
    return _traced.follower


def recorder_here(*given: Any) -> Any:
    """Who follows what this thread calls with these, which may be nodes of a graph that is defined; None
    where nobody does.
    """
    for x in given:
        if hasattr(type(x), "recorder"):
            return x.recorder
    return _traced.recorder


def keeping(given: Any, call: Callable[[], Any], **state: Any) -> Any:
    """What a call gives that writes into tensors which stay: they are state, by name, of a graph that is
    defined, if `given` is a node of it.
    """
    if not hasattr(type(given), "recorder"):
        return call()
    return given.recorder.keeping(call, {id(x): name for name, x in state.items() if x is not None})


def answered(what: str, answer: Any) -> Any:
    """What a function of kiln's with the name `what` says of a mode or a switch; who follows the calls of
    this thread is told, whose program would go by it.
    """
    recorder = _traced.recorder or _traced.follower
    return answer if recorder is None else recorder.asked_mode(what, answer)


def beside(like: Any, make: Callable[[], Any]) -> Any:
    """What `make` gives; where `like` is a node of a graph, a node of it, made anew at each run."""
    return like.recorder.wrapped(like.recorder.during(make)) if hasattr(type(like), "recorder") else make()


def is_traced() -> bool:
    """Whether this thread traces a function."""
    return bool(_traced.depth)


def expect(holds: Any, kind: type[Exception], told: str | Callable[[], str]) -> None:
    """Raises an error of `kind` unless all elements of a tensor of bools are true: now, or, where a function
    is traced, at each call of the program.
    """
    recorder = recorder_here(holds)
    if recorder is not None and isinstance(holds, _core.Tensor):
        recorder.expect(holds.all(), kind, told if isinstance(told, str) else told())
    elif not bool(holds.all()):
        raise kind(told if isinstance(told, str) else told())


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


def number(x: Any, value: Any) -> Any:
    """A literal or a size as a number of x's graph; as it is, where x is none of a graph's values."""
    return record.constant(x.graph, value) if isinstance(x, g.Value) else value


def numel(shape: Any) -> Any:
    """How many elements a shape holds, as an int or a size."""
    return product(tuple(shape))


def count_of(x: g.Value, dims: tuple[int, ...]) -> g.Value:
    """The number of elements in some dims of x, as a number of its graph."""
    count: g.Value = number(x, product(tuple(x.shape[d] for d in dims)))
    return count


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
    return tuple(m if m == n else n if m == 1 else m for m, n in zip(a, b))


def is_symbolic(shape: Any) -> bool:
    """Whether any size of a shape is not known as an int."""
    return any(isinstance(d, Size) for d in shape)


def answerable(*sizes: Any) -> bool:
    """Whether sizes can be compared: numbers can, and those that vary while a function is traced, where the
    answer is checked at each call; what a graph under construction knows of is neither.
    """
    return all(type(n) is not Size for n in sizes)


def surely_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever those are that vary; nothing is asked."""
    difference = a - b
    return isinstance(difference, int) and difference == 0


def fixed_count(n: Any, what: str) -> int:
    """A size that what a program consists of depends on: it is as in the example, for the reason given."""
    found: int = n if isinstance(n, int) else n.fixed(what)
    return found


def default_float() -> str:
    """The name of the default float dtype."""
    return str(_core.default_dtype_name())


def type_name(dtype: str) -> str:
    """A dtype as PyTorch's messages name it: "Float" for float32."""
    return {
        "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
        "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
    }[dtype]  # fmt: skip
