"""Errors in terms of the call that a user wrote; imported when the first one is raised.

    kiln.softmax(3, 0)     AttributeError somewhere inside
                           -> TypeError: softmax(): argument 'input' (position 1) must be Tensor, not int
    kiln.norm(x, dim=9)    IndexError: Dimension out of range ...
                           -> IndexError: norm: Dimension out of range ...

The core hands over what a public function or op raised. What kiln itself raises on purpose keeps its type.
What went wrong by accident (an attribute that an argument of another type does not have) is a mistake in the
arguments, and the function's samples, defaults and annotations say what type each may have. Errors of code
that kiln called, a user's function for instance, stay as they are. The frames of kiln are cut from
tracebacks; KILN_TRACEBACK=full keeps them, and errors as they were raised.
"""

from __future__ import annotations

import dis
from types import TracebackType
from typing import Any

from kiln import _core
from kiln.errors import entries, is_own, shorten, whole_tracebacks
from kiln.ops.declare import FACTS

_RAISE = (dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"])
# what our own errors are; of these the text gets the function's name
_OURS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
# what is no accident, whoever raises it
_KEPT = (
    *_OURS, ArithmeticError, BufferError, EOFError, ImportError, MemoryError, OSError, SystemError, Warning,
)  # fmt: skip
_TENSORS = ("input", "other", "tensor", "x")  # what is called so is one, where nothing says more
_NUMBERS = {"float": ("int", "bool"), "int": ("bool",)}  # what else is a float, an int
_OF_LETTER = {
    "T": ("Tensor",), "V": ("Tensor", "float"), "N": ("float", "Tensor"), "O": ("Tensor", "NoneType"),
}  # fmt: skip
_ANNOTATED = {"int": "int", "float": "float", "bool": "bool", "str": "str", "None": "NoneType"}


def describe_error(
    callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
) -> BaseException:
    """The error to raise for a call of a public function or op."""
    if whole_tracebacks():
        return error
    frames = entries(error.__traceback__)
    last = frames[-1] if frames else None
    shorten(error)
    if last is not None and not is_own(last.tb_frame):
        return error  # of a user's code that the function called
    inner = getattr(error, "_without_name", None)  # the text before an inner function put its name there
    deliberate = inner is not None or last is None or _raises(last)
    name = _name(callable)
    if name is None:
        return error  # no function of the table: only its frames go
    accident = not deliberate and not isinstance(error, _KEPT)
    about_types = isinstance(error, TypeError) and (not deliberate or "argument" in str(error))
    wrong = _wrong_argument(callable, name, args, kwargs) if accident or about_types else None
    if wrong is not None:
        return _plainly(TypeError(wrong))
    if accident:
        return _plainly(TypeError(f"{name}(): the arguments do not fit ({type(error).__name__}: {error})"))
    if type(error) in _OURS and len(error.args) == 1 and isinstance(error.args[0], str):
        text = error.args[0] if inner is None else inner
        short = name.rpartition(".")[2].rstrip("_")
        error._without_name = text  # type: ignore[attr-defined]
        error.args = (text if short in text else f"{name}: {text}",)
    return error


def _plainly(error: TypeError) -> TypeError:
    """An error in place of one that says nothing to the user."""
    error.__suppress_context__ = True
    error._without_name = error.args[0]  # type: ignore[attr-defined]
    return error


def _raises(entry: TracebackType) -> bool:
    """Whether the error was raised on purpose: by a `raise` statement."""
    return entry.tb_frame.f_code.co_code[entry.tb_lasti] in _RAISE


def _name(callable: Any) -> str | None:
    name = "__name__" if isinstance(callable, _core.Op) else "__kiln_name__"
    found: str | None = getattr(callable, name, None)
    return found


# -- which argument is wrong ----------------------------------------------------------------------------


def _wrong_argument(callable: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The sentence for the first argument of a type that the function's parameter does not have."""
    allowed = _types(callable, name)
    places = [*allowed]
    given = [*zip(places, args), *((k, v) for k, v in kwargs.items() if k in allowed)]
    for parameter, value in given:
        types, kind = allowed[parameter], _kind(value)
        if not types or kind in types or any(kind in _NUMBERS.get(t, ()) for t in types):
            continue
        at = f" (position {places.index(parameter) + 1})" if parameter not in kwargs else ""
        expected = " or ".join("None" if t == "NoneType" else t for t in types)
        return f"{name}(): argument '{parameter}'{at} must be {expected}, not {type(value).__name__}"
    return None


def _kind(value: Any) -> str:
    if isinstance(value, _core.Tensor):
        return "Tensor"
    if isinstance(value, (list, tuple)):
        return "tuple of Tensors" if value and all(isinstance(v, _core.Tensor) for v in value) else "tuple"
    return type(value).__name__


def _types(callable: Any, name: str) -> dict[str, tuple[str, ...]]:
    """The types that each parameter may have: by an op's parameters, by defaults and by samples."""
    record = callable.record if isinstance(callable, _core.Op) else None
    facts: Any = FACTS.get(name.removesuffix("_"), record)
    parameters = _parameters(callable)
    found: dict[str, list[str]] = {p: [] for p, _ in parameters}
    for parameter, default in parameters:
        if default is not _core.REQUIRED:
            _add(found[parameter], _kind(default))
    for parameter, text in getattr(_written(callable), "__annotations__", {}).items():
        if parameter in found and all(part in _ANNOTATED for part in str(text).split(" | ")):
            for part in str(text).split(" | "):
                _add(found[parameter], _ANNOTATED[part])
    for param in record.params if record is not None and facts is record else ():
        for kind in ("tuple of Tensors",) if param.kind == "L" else _OF_LETTER.get(param.kind, ()):
            _add(found[param.name], kind)
    if getattr(facts, "samples", None) is not None:
        named = _parameters(facts.function)
        if all(p == own for (p, _), own in zip(named, found)):  # a method may take them in another order
            _add_samples(found, facts)
    for parameter in _TENSORS:
        if not found.get(parameter, ["none of it"]):
            found[parameter] = ["Tensor"]
    return {p: () if types == ["NoneType"] else tuple(types) for p, types in found.items()}


def _add_samples(found: dict[str, list[str]], facts: Any) -> None:
    import numpy as np

    dtype = "int64" if facts.dtypes in ("integral", "whole", "int") else "float32"
    for sample in facts.samples(np.random.default_rng(0), dtype):
        for parameter, value in [*zip(found, sample.args), *sample.kwargs.items()]:
            if parameter in found:
                _add(found[parameter], _kind_of_sample(value, np))


def _kind_of_sample(value: Any, np: Any) -> str:
    if isinstance(value, np.ndarray):
        return "Tensor"
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, np.ndarray) for v in value):
        return "tuple of Tensors"
    return _kind(value)


def _add(types: list[str], kind: str) -> None:
    if kind not in types:
        types.append(kind)


def _parameters(callable: Any) -> list[tuple[str, Any]]:
    """Names and defaults of what a callable takes by place or name."""
    function = _written(callable)
    if isinstance(function, _core.Op):
        return [(p.name, p.default) for p in function.record.params]
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    first = len(names) - len(defaults)
    given = [(n, _core.REQUIRED if k < first else defaults[k - first]) for k, n in enumerate(names)]
    return given + [(n, d) for n, d in (function.__kwdefaults__ or {}).items()]


def _written(callable: Any) -> Any:
    """The function in Python behind a callable, or the op that it is."""
    while hasattr(callable, "__wrapped__"):
        callable = callable.__wrapped__
    return callable
