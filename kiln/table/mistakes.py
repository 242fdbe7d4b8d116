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
import inspect
import re
from types import TracebackType
from typing import Any

from kiln import _core
from kiln.errors import entries, is_own, shorten, whole_tracebacks
from kiln.graph.verify import VerifyError
from kiln.table.meanings import LETTERS, TYPE_OF
from kiln.table.old_orders import in_todays_order
from kiln.table.public import FACTS
from kiln.table.registry import OPS, has_function

_RAISE = (dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"])
# what our own errors are; of these the text gets the function's name
_OURS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
# what is no accident, whoever raises it
_KEPT = (
    ArithmeticError, BufferError, EOFError, ImportError, MemoryError, NotImplementedError, OSError,
    RuntimeError, SystemError, Warning,
)  # fmt: skip
# what a tensor says that is asked for a number
_OF_TENSORS = re.compile("^(Boolean value of Tensor|float..: only one element|only (one|integer) )")
_CONSTRUCTORS = ("__init__", "__new__")
# what else is taken for a float, an int, a tuple of sizes
_NUMBERS = {"float": ("int", "bool"), "int": ("bool",), "tuple": ("int", "bool")}
_ANNOTATED = {"int": "int", "float": "float", "bool": "bool", "str": "str", "None": "NoneType"}


def describe_error(
    callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
) -> BaseException | tuple[tuple[Any, ...], dict[str, Any]]:
    """The error to raise for a call of a public function or op; or the arguments it is to be called with
    instead, where these were in an order that was before.
    """
    if isinstance(callable, _core.Op) and isinstance(error, TypeError):
        today = in_todays_order(str(getattr(callable, "__name__", "")), args, kwargs)
        if today is not None:
            return today
    if whole_tracebacks():
        return error
    frames = entries(error.__traceback__)
    last = frames[-1] if frames else None
    shorten(error)
    if last is not None and not is_own(last.tb_frame):
        if not all(is_own(entry.tb_frame) or _is_of_numpy(entry) for entry in frames):
            return error  # of a user's code that the function called
        error.__traceback__ = None
    inner = getattr(error, "_without_name", None)  # the text before an inner function put its name there
    deliberate = inner is not None or last is None or (is_own(last.tb_frame) and _raises(last))
    name = _name(callable, args)
    if name is None:  # no function of the table: only its frames go
        if deliberate:
            error._without_name = str(error) if inner is None else inner  # type: ignore[attr-defined]
        return error
    accident = inner is None and _is_accident(error, last)
    # An op's arguments are looked at by the core alone, which asks Python for hashes and numbers.
    accident |= last is None and isinstance(callable, _core.Op) and _is_unfit(error)
    about_types = isinstance(error, TypeError) and (not deliberate or "argument" in str(error))
    about_types &= "must be bool, not" not in str(error)  # which is told already
    about_types |= inner is None and bool(_OF_TENSORS.search(str(error)))
    if accident or about_types:
        told = _of_arguments(callable, name, args, kwargs, error if accident else None)
        if told is not None:
            return _plainly(told)
    op = OPS.get(plain := name.rstrip("_")) if isinstance(callable, _core.Op) else None
    if op is not None and not op.public and not has_function(plain):
        error._without_name = str(error) if inner is None else inner  # type: ignore[attr-defined]
        return error  # what a user wrote is `x[...]`, or a function that will put its name there
    return _with_name(error, name, inner, *args[: _is_method(name)])


def _is_method(name: str) -> bool:
    """Whether a name is that of a class's method: `Module.to`, not `linalg.norm`."""
    return name[0].isupper() and "." in name


def _of_arguments(
    callable: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], accident: BaseException | None
) -> Exception | None:
    """What is wrong with the arguments; if an accident shows that something is, in any case something."""
    few = _few_dims(name, args, kwargs) if isinstance(accident, IndexError) else None
    if few is not None:
        return IndexError(few)
    wrong = _wrong_argument(callable, name, args, kwargs)
    if accident is not None and wrong is None:
        wrong = _wrong_out(name, kwargs) or _all_arguments(callable, name, args, kwargs)
    return None if wrong is None else TypeError(wrong)


def _with_name(error: BaseException, name: str, inner: str | None, *of: Any) -> BaseException:
    """The error with the function's name before its text, in the place of an inner function's.

    Errors of other types, and of a method of an object (`of`) whose class the text names, keep it. All are
    known from then on as raised on purpose.
    """
    ours = type(error) in _OURS or type(error).__name__ == "_LinAlgError"
    if not ours or any(type(x).__name__ in str(error) for x in of):
        error._without_name = str(error)  # type: ignore[attr-defined]
    elif len(error.args) == 1 and isinstance(error.args[0], str):
        text = error.args[0] if inner is None else inner
        short = name.rpartition(".")[2].rstrip("_")
        error._without_name = text  # type: ignore[attr-defined]
        said = short in text if len(short) > 3 else re.search(rf"\b{short}_?\b", text)
        error.args = (text if said else f"{name}: {text}",)
    return error


def _is_accident(error: BaseException, last: TracebackType | None) -> bool:
    """Whether an error is of kiln's inside: neither a `raise` statement nor the core says it of the call.

    A ValueError may also be what a function of Python's or NumPy's says of its argument.
    """
    if last is None or _raises(last):
        return isinstance(error, VerifyError)
    if hasattr(error, "_of_core") or isinstance(error, _KEPT):
        return False
    return type(error) is not ValueError or not _calls(last)


def _is_unfit(error: BaseException) -> bool:
    """Whether Python refused an argument that the core handed to it: unhashable, or no number."""
    unmarked = isinstance(error, (TypeError, AttributeError)) and not hasattr(error, "_of_core")
    return unmarked and "argument" not in str(error)


def _few_dims(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The sentence where a dim was asked for that no tensor given has."""
    shapes: list[tuple[int, ...]] = [
        tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, _core.Tensor)
    ]
    if not shapes:
        return None
    shape = [*min(shapes, key=lambda s: len(s))]
    if not shape:
        return f"{name}(): Dimension specified as 0 but tensor has no dimensions"
    return f"{name}(): Dimension out of range: a tensor of shape {shape} has too few dimensions"


def _plainly(error: Exception) -> Exception:
    """An error in place of one that says nothing to the user."""
    error.__suppress_context__ = True
    error._without_name = error.args[0]  # type: ignore[attr-defined]
    return error


def _is_of_numpy(entry: TracebackType) -> bool:
    """Whether a frame is one of a library that kiln itself calls."""
    return str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0] in ("numpy", "scipy")


def _raises(entry: TracebackType) -> bool:
    """Whether the error was raised on purpose: by a `raise` statement."""
    return entry.tb_frame.f_code.co_code[entry.tb_lasti] in _RAISE


def _calls(entry: TracebackType) -> bool:
    """Whether the error came out of a call: PRECALL once the interpreter has adapted it to what is called."""
    return "CALL" in dis.opname[entry.tb_frame.f_code.co_code[entry.tb_lasti]]


def _name(callable: Any, args: tuple[Any, ...]) -> str | None:
    """What the user called: a class, by its constructor, or a function of the table."""
    name = "__name__" if isinstance(callable, _core.Op) else "__kiln_name__"
    found: str | None = getattr(callable, name, None)
    if found in _CONSTRUCTORS:
        made = args[0] if isinstance(args[0], type) else type(args[0])
        own = [c for c in made.__mro__ if c.__module__.startswith(("kiln.", "torch."))]
        own = [c for c in own if "_kiln_one_object" not in vars(c)]
        first = next((vars(c)[found] for c in own if found in vars(c)), None)
        if first is not callable and getattr(first, "__func__", None) is not callable:
            return None  # one of a base class, called by that of the class
        return own[0].__name__ if own else None
    return found


def describe_layer(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
) -> BaseException:
    """The error to raise for a call of a module."""
    function = type(module).forward
    if whole_tracebacks():
        return error
    frames = entries(error.__traceback__)
    shorten(error)
    last = frames[-1] if frames else None
    own = str(getattr(function, "__module__", "")).startswith("kiln.")
    if not own or last is None or not is_own(last.tb_frame) or hasattr(error, "_without_name"):
        return error  # of the user's code, or told of a function already
    name, text = type(module).__name__, str(error)
    if text.startswith(f"{function.__qualname__}()"):
        error.args = (text.replace(function.__qualname__, f"{name}.forward", 1),)
    elif isinstance(error, TypeError) and any(text.startswith(f"{hook}()") for hook in _hooks(module)):
        return error  # a hook that takes other arguments than hooks are given
    elif _is_accident(error, last):
        taken = [*inspect.signature(function).parameters][1:]
        return _plainly(TypeError(_do_not_fit(name, args, kwargs, taken)))
    elif type(error) in _OURS and name not in text:
        error._without_name = text  # type: ignore[attr-defined]
        error.args = (f"{name}: {text}",)
    return error


def _hooks(module: Any) -> set[str]:
    """What the hooks of a module are called."""
    kept = [held for key, held in vars(module).items() if key.endswith("_hooks") and isinstance(held, dict)]
    return {getattr(hook, "__qualname__", "") for hooks in kept for hook in hooks.values()} - {""}


# -- which argument is wrong ----------------------------------------------------------------------------


def _wrong_argument(callable: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The sentence for the first argument of a type that the function's parameter does not have."""
    allowed = _types(callable, name)
    places = [*allowed]
    own = _before_the_users(callable)
    by_place = [*zip(places[: _by_place(callable)], args)][own:]
    given = [*by_place, *((k, v) for k, v in kwargs.items() if k in allowed)]
    for parameter, value in given:
        types, kind = allowed[parameter], _kind(value)
        if not types or kind in types or any(kind in _NUMBERS.get(t, ()) for t in types):
            continue
        at = f" (position {places.index(parameter) + 1 - own})" if parameter not in kwargs else ""
        expected = " or ".join("None" if t == "NoneType" else t for t in types)
        return f"{name}(): argument '{parameter}'{at} must be {expected}, not {type(value).__name__}"
    return None


def _wrong_out(name: str, kwargs: dict[str, Any]) -> str | None:
    """The sentence for `out=` that is no tensor."""
    out = kwargs.get("out")
    if out is None or isinstance(out, _core.Tensor):
        return None
    return f"{name}(): argument 'out' must be Tensor, or a tuple of one for each result, not {_shown(out)}"


def _all_arguments(callable: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The sentence where no argument is wrong alone: what was given, and what the function takes."""
    places = [*_types(callable, name)]
    unknown = [k for k in kwargs if k not in places]
    if unknown:
        return f"{name}() got an unexpected keyword argument '{unknown[0]}'"
    own = _before_the_users(callable)
    return _do_not_fit(name, args[own:], kwargs, places[own:] + _starred(callable))


def _before_the_users(callable: Any) -> int:
    """How many arguments Python gives before the user's: `self`, of a constructor or a class's method."""
    name = getattr(callable, "__kiln_name__", None)
    return int(name is not None and (name in _CONSTRUCTORS or _is_method(name)))


def _do_not_fit(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], taken: list[str]) -> str:
    given = ", ".join([_shown(v) for v in args] + [f"{k}={_shown(v)}" for k, v in kwargs.items()])
    return (
        f"{name}() received an invalid combination of arguments - got ({given}), but expected "
        f"({', '.join(taken)})"
    )


def _starred(callable: Any) -> list[str]:
    """The parameter that takes any number of arguments."""
    code = getattr(_written(callable), "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARARGS:
        return []
    return [f"*{code.co_varnames[code.co_argcount + code.co_kwonlyargcount]}"]


def _shown(value: Any, inside: bool = False) -> str:
    kind = "Tensor" if isinstance(value, _core.Tensor) else type(value).__name__
    if inside or not isinstance(value, (list, tuple)):
        return kind
    return f"{kind} of ({', '.join(_shown(v, True) for v in value[:4])})" if value else f"empty {kind}"


def _kind(value: Any) -> str:
    if isinstance(value, _core.Tensor):
        return "Tensor"
    if isinstance(value, (list, tuple)):
        return "tuple of Tensors" if value and all(isinstance(v, _core.Tensor) for v in value) else "tuple"
    return type(value).__name__


def _types(callable: Any, name: str) -> dict[str, tuple[str, ...]]:
    """The types that each parameter may have: by defaults, letters and samples, else by name."""
    record = callable.record if isinstance(callable, _core.Op) else None
    facts: Any = FACTS.get(name, FACTS.get(name.rstrip("_"), record))
    parameters = _parameters(callable)
    found: dict[str, list[str]] = {p: [] for p, _ in parameters}
    for parameter, default in parameters:
        if default is not _core.REQUIRED:
            _add(found[parameter], _kind(default))
    annotations = getattr(_written(callable), "__annotations__", {})
    for parameter, text in annotations.items():
        if parameter in found and all(part in _ANNOTATED for part in str(text).split(" | ")):
            for part in str(text).split(" | "):
                _add(found[parameter], _ANNOTATED[part])
    for param in record.params if record is not None and facts is record else ():
        for kind in LETTERS[param.kind].kinds:
            _add(found.setdefault(param.name, []), kind)
    if getattr(facts, "samples", None) is not None:
        named = _parameters(facts.function)
        if all(p == own for (p, _), own in zip(named, found)):  # a method may take them in another order
            _add_samples(found, facts)
    for parameter, types in found.items():
        said = str(annotations.get(parameter, "Tensor"))
        if not types and TYPE_OF.get(parameter) == "Tensor" and re.search("Tensor|Any", said):
            types.append("Tensor")
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


def _by_place(callable: Any) -> int | None:
    """How many parameters a callable takes by place; None: all of them."""
    code = getattr(_written(callable), "__code__", None)
    return None if code is None else int(code.co_argcount)


def _written(callable: Any) -> Any:
    """The function in Python behind a callable, or the op that it is."""
    while hasattr(callable, "__wrapped__"):
        callable = callable.__wrapped__
    return callable
