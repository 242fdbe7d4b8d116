"""Calls in rewritten code: functions of the program are rewritten too, Python's own know numbers and tensors.

call(f, ..)     f of the program: its rewritten form; of kiln: as it is, numbers as tensors of no dims;
                of Python's: one that takes what depends on values, where there is one
"""

from __future__ import annotations

import builtins
import copy
import dis
import functools
import inspect
import math
import os
import re
from collections import deque
from collections.abc import Callable
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import Any

from kiln import _core, ops
from kiln.capture.pure.guards import is_below
from kiln.errors import entries, is_own, place
from kiln.nn import Module
from kiln.scripting.blocks import unpack
from kiln.scripting.conditions import and_, choose, compared, just, or_
from kiln.scripting.context import Context, running
from kiln.scripting.failing import fail_where, raised
from kiln.scripting.functions import is_rewritten, rewrite
from kiln.scripting.items import cell_slot, changes, global_slot, set_attr
from kiln.scripting.numbers import KINDS, Number, Tensor, cast, dtype_of, number, of_item
from kiln.scripting.sizes import ADDS, COPIES, OF_LISTS, OF_SIZES, has_rows, steps, truth, varies
from kiln.scripting.statements import Range, shown
from kiln.tracing.recorder import TracingError

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
DEPTH = 24  # of a function that calls itself, in branches that depend on values
_CHANGING = frozenset((
    "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault",
    "popitem", "add", "discard", "subtract", "move_to_end", "__setitem__", "__delitem__",
))  # fmt: skip
_FOLDS = (any, all, sum, min, max)
_MAKERS = (sorted, copy.copy, copy.deepcopy)


def new(thing: Any) -> Any:
    """A container that was just made."""
    return running().new(thing)


def is_left_alone(f: Any) -> bool:
    """Whether a function is none of the program's."""
    file = f.__code__.co_filename
    return file.startswith(_OWN) or is_below(file)


def is_symbolic(x: Any) -> bool:
    """Whether something is, or holds, a tensor or a number that depends on one."""
    leaves, _, _ = unpack(x)
    return any(isinstance(v, (Tensor, Number)) for v in leaves) or isinstance(x, Range)


def call(f: Any, /, *args: Any, **kwargs: Any) -> Any:
    """f(*args, **kwargs)"""
    context = running()
    try:
        special = _SPECIAL.get(f)
    except TypeError:  # cannot be hashed
        special = None
    if context.recorder.shapes:
        made = _of_sizes(context, f, args, kwargs)
        if made is not NotImplemented:
            return made
    if special is not None and not (context.pinned and f not in _PLAIN):
        if f in _FOLDS and len(args) == 1 and not isinstance(args[0], (Tensor, str, dict, set)):
            args = (args[0] if isinstance(args[0], (list, tuple, range, Range)) else list(args[0]),)
        if any(map(is_symbolic, (*args, *kwargs.values()))) or (f is range and any(map(varies, args))):
            return special(*args, **kwargs)
    if isinstance(f, functools.partial):
        return call(f.func, *f.args, *args, **{**f.keywords, **kwargs})
    if isinstance(f, FunctionType):
        return _function(context, f, args, kwargs)
    if isinstance(f, MethodType):
        return _method(context, f, args, kwargs)
    if isinstance(f, Module):
        patch(context, f)
        return f(*args, **kwargs)
    if isinstance(f, BuiltinMethodType):
        return _builtin(context, f, args, kwargs)
    scripted = getattr(type(f), "scripted_function", None)
    if scripted is not None:
        return call(f.scripted_function, *args, **kwargs)
    if isinstance(f, type):
        made = f(*args, **kwargs)
        return context.new(made) if not isinstance(made, (Tensor, int, float, str, tuple)) else made
    own = inspect.getattr_static(type(f), "__call__", None)
    if isinstance(own, FunctionType):
        return call(MethodType(own, f), *args, **kwargs)
    return _native(context, f, args, kwargs)


def _of_sizes(context: Context, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function gives of sizes that vary and of lists as long as they are; NotImplemented where that is
    nothing special.
    """
    if isinstance(f, (type, BuiltinFunctionType)):
        special = OF_SIZES.get(f)
        made = NotImplemented if special is None else special(*args, **kwargs)
        if made is not NotImplemented:
            return made
    held = getattr(f, "__self__", None)
    if not context.grows or not any(map(has_rows, (held, *args, *kwargs.values()))):
        return NotImplemented
    name = getattr(f, "__name__", "")
    if has_rows(held):
        if name not in ADDS:
            context.refuse(f"calls {name} of a list whose length is a size that varies")
        return NotImplemented
    if name in OF_LISTS and not isinstance(f, FunctionType):
        return OF_LISTS[name](*args, **kwargs)
    if isinstance(f, FunctionType) and name in OF_LISTS and is_left_alone(f):
        return OF_LISTS[name](*args, **kwargs)
    own = getattr(f, "__func__", f)
    if f in COPIES or name in ADDS or (isinstance(own, FunctionType) and not is_left_alone(own)):
        return NotImplemented
    if isinstance(f, functools.partial):
        return NotImplemented
    if isinstance(f, Module) and not is_left_alone(type(f).forward):
        return NotImplemented
    context.refuse(f"gives {name or 'a function'} a list whose length is a size that varies: stack it before")


def _function(context: Context, f: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if getattr(f, "_kiln_ignored", False) or (is_left_alone(f) and not is_rewritten(f)):
        wrapped = getattr(f, "__wrapped__", None)
        if wrapped is not None and isinstance(wrapped, FunctionType) and not is_left_alone(wrapped):
            return _wrapped(context, f, wrapped, args, kwargs)
        made = _native(context, f, args, kwargs)
        return context.new(made) if f in _MAKERS else made
    made = f if is_rewritten(f) else rewrite(f)
    if made is None:
        try:
            return f(*args, **kwargs)
        except TracingError as error:
            error.add_note(f"the source of {f.__name__} is not to be found, so that it runs as it is")
            raise
    context.ran[f.__code__] = f.__globals__
    if made is not f:
        _expect_writes(context, f)
    code = made.__code__
    if context.logs and context.calls.count(code) >= DEPTH:
        context.deepest += 1
        if context.deepest > 4:
            context.refuse(f"calls {f.__name__} in itself without a bound that does not depend on values")
        deep = RecursionError(f"{f.__name__} calls itself more than {DEPTH} times, depending on values")
        raise raised(just(deep))
    context.calls.append(code)
    try:
        return made(*args, **kwargs)
    except NameError as error:
        _explain(context, error)
        raise
    finally:
        context.calls.pop()


def _expect_writes(context: Context, f: FunctionType) -> None:
    """What a function declares `global` or `nonlocal` and writes is changed by every call."""
    names, free = written_names(f.__code__)
    if not names and not free:
        return
    if not context.pinned:
        context.refuse(f"writes {', '.join(sorted(names | free))}, which is there before the call")
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or ()))
    for name in sorted(names):
        context.outside(f.__globals__, name, global_slot(f.__globals__, name))
    for name in sorted(free):
        context.outside(cells[name], None, cell_slot(cells[name], name))


@functools.cache
def written_names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code writes, and the names of functions around it."""
    names, free = set(), set()
    for i in dis.get_instructions(code):
        if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            names.add(i.argval)
        elif i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval in code.co_freevars:
            free.add(i.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, around = written_names(inner)
            names |= more
            free |= around & set(code.co_freevars)
    return frozenset(names), frozenset(free)


def _explain(context: Context, error: NameError) -> None:
    """Raises why a name has no value, if branches are the reason."""
    found = re.search(r"'(\w+)'", str(error))
    if found is not None and found[1] in context.unset:
        frames = [t for t in entries(error.__traceback__) if not is_own(t.tb_frame)]
        line = place(frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno) if frames else ""
        context.refuse(f"reads a name that has no value: {context.unset[found[1]]}", line)


def _wrapped(context: Context, f: Any, wrapped: Any, args: Any, kwargs: Any) -> Any:
    """A function of the program in a wrapper of kiln's (`no_grad()`): the wrapper's cell is exchanged."""
    for cell in f.__closure__ or ():
        if cell.cell_contents is wrapped:
            cell.cell_contents = lambda *a, **kw: call(wrapped, *a, **kw)
            try:
                return f(*args, **kwargs)
            finally:
                cell.cell_contents = wrapped
    return _native(context, f, args, kwargs)


def _method(context: Context, f: MethodType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    held, function = f.__self__, f.__func__
    if isinstance(held, (list, dict, set)) and f.__name__ in _CHANGING and is_left_alone(function):
        changes(held, f.__name__ in ADDS)
    if isinstance(held, Module) and f.__name__ in ("forward", "__call__"):
        patch(context, held)
    if isinstance(held, Tensor) and not context.pinned:
        special = _OF_TENSOR.get(f.__name__)
        if special is not None:
            return special(held, *args, **kwargs)
    if isinstance(function, FunctionType):
        if is_left_alone(function) and not is_rewritten(function):
            return _native(context, f, args, kwargs)
        return _function(context, function, (held, *args), kwargs)
    return _native(context, f, args, kwargs)


def _builtin(context: Context, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    held = f.__self__
    if isinstance(held, Tensor):
        special = None if context.pinned else _OF_TENSOR.get(f.__name__)
        if special is not None:
            return special(held, *args, **kwargs)
        return _native(context, f, args, kwargs)
    if isinstance(held, (list, dict, set)):
        if f.__name__ in _CHANGING:
            changes(held, f.__name__ in ADDS)
        made = f(*args, **kwargs)
        return context.new(made) if f.__name__ == "copy" else made
    if _goes_on(held):
        context.touch(held)
    elif f is next and args and _goes_on(args[0]):
        context.touch(args[0])
    if isinstance(held, str) and context.lenient and f.__name__ == "format":
        return f(*map(shown, args), **{n: shown(v) for n, v in kwargs.items()})
    return _native(context, f, args, kwargs)


def _goes_on(thing: Any) -> bool:
    """Whether methods of an object change it: an iterator, a deque."""
    return isinstance(thing, (deque, bytearray)) or hasattr(type(thing), "__next__")


# -- kiln's functions -------------------------------------------------------------------------------


def _native(context: Context, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that is not rewritten; numbers that depend on values are tensors to it."""
    reads = None if context.pinned else _OF_TENSOR.get(getattr(f, "__name__", ""))
    if reads is not None and args and isinstance(args[0], Tensor):
        return reads(*args, **kwargs)
    if (
        any(_has_number(x) for x in (*args, *kwargs.values()))
        and getattr(f, "__module__", "") not in _PYTHONS
    ):
        name = getattr(f, "__name__", "")
        special = _WITH_NUMBERS.get(name)
        if special is not None:
            return special(f, *args, **kwargs)
        held = getattr(f, "__self__", None)
        tensors = [x for x in (held, *args, *kwargs.values()) if isinstance(x, Tensor)]
        if tensors:
            like = tensors[0]
            args = tuple([_beside(x, like) for x in args])
            kwargs = {n: _beside(x, like) for n, x in kwargs.items()}
            try:
                made = f(*args, **kwargs)
            except TypeError as error:
                context.refuse(f"calls {name or 'a function'} with a number that depends on values: {error}")
            own = dtype_of(like)
            if own in ("float16", "bfloat16") and isinstance(made, Tensor) and dtype_of(made) == "float32":
                made = cast(made, own)
            return made
        context.refuse(f"calls {name or 'a function'} with a number that depends on the value of a tensor")
    return f(*args, **kwargs)


_PYTHONS = ("builtins", "math", "operator")  # whose functions ask the number itself


def _has_number(x: Any) -> bool:
    return isinstance(x, Number) or (isinstance(x, (list, tuple)) and any(map(_has_number, x)))


def _beside(x: Any, like: Any) -> Any:
    if isinstance(x, Number):
        return x.beside(like)
    return type(x)([_beside(v, like) for v in x]) if type(x) in (list, tuple) and _has_number(x) else x


def _tensor(f: Any, data: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """kiln.tensor of numbers that depend on values."""
    leaves, _, build = unpack(data)
    if type(data) in (list, tuple):
        parts = [_tensor(f, v) for v in data]
        made = ops.stack(parts)
    else:
        x = number(leaves[0])
        own = default_dtype() if x.kind is float else KINDS[x.kind]
        made = cast(x.tensor, own)
    kwargs.pop("device", None)
    if kwargs.pop("requires_grad", False) or kwargs or args:
        running().refuse(f"makes a tensor of a number that depends on values with {args or kwargs}")
    made = made.clone()
    return made if dtype is None else made.to(dtype)


def default_dtype() -> str:
    """The name of the default dtype."""
    return str(_core.default_dtype_name())


def _full(f: Any, size: Any, fill_value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    shape = tuple(size.shape) if isinstance(size, Tensor) else size
    if _has_number(shape) or not isinstance(fill_value, Number):
        running().refuse("takes as a size a number that depends on the value of a tensor")
    own = dtype if dtype is not None else size.dtype if isinstance(size, Tensor) else None
    return _tensor(f, fill_value, dtype=own).expand(shape).clone()


def _fill(f: Any, value: Any) -> Any:
    return f.__self__.copy_(value.tensor)


_WITH_NUMBERS: dict[str, Callable[..., Any]] = {
    "tensor": _tensor, "as_tensor": _tensor, "scalar_tensor": _tensor, "full": _full, "full_like": _full,
    "fill_": _fill,
}  # fmt: skip


# -- methods of tensors that read values ------------------------------------------------------------


def _tolist(x: Any) -> Any:
    return of_item(x) if not x.ndim else running().new([_tolist(v) for v in x])


def _equal(a: Any, b: Any) -> Any:
    if tuple(a.shape) != tuple(b.shape):
        return False
    return truth((a == b).all())


def _allclose(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    return truth(a.isclose(b, *args, **kwargs).all())


_OF_TENSOR: dict[str, Callable[..., Any]] = {
    "item": of_item,
    "tolist": _tolist,
    "is_nonzero": truth,
    "__bool__": truth,
    "__int__": lambda x: of_item(x).as_kind(int),
    "__float__": lambda x: of_item(x).as_kind(float),
    "equal": _equal,
    "allclose": _allclose,
}


# -- Python's functions -----------------------------------------------------------------------------


def _converted(kind: type) -> Callable[..., Any]:
    def convert(x: Any, *args: Any) -> Any:
        if isinstance(x, Tensor):
            x = of_item(x)
        return x.as_kind(kind) if isinstance(x, Number) else kind(x, *args)

    return convert


def _extreme(function: Any, sign: str) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        items = list(args[0]) if len(args) == 1 else list(args)
        if kwargs or not items:
            return function(*args, **kwargs)
        found = items[0]
        for x in items[1:]:
            less = compared(sign, x, found)
            if isinstance(x, (Number, int, float)) and isinstance(found, (Number, int, float)):
                found = _of_numbers(less, x, found)
            else:
                found = choose(less, just(x), just(found), 0)
        return found

    return extreme


def _of_numbers(flag: Any, x: Any, y: Any) -> Any:
    return choose(flag, lambda: x, lambda: y, 0)


def _any(items: Any) -> Any:
    found: Any = False
    for x in items:
        found = or_(found, just(truth(x)))
    return found if isinstance(found, Number) else bool(found)


def _all(items: Any) -> Any:
    found: Any = True
    for x in items:
        found = and_(found, just(truth(x)))
    return found if isinstance(found, Number) else bool(found)


def _isinstance(x: Any, kind: Any) -> bool:
    return issubclass(x.kind, kind) if isinstance(x, Number) else builtins.isinstance(x, kind)


def _type(x: Any) -> Any:
    return x.kind if isinstance(x, Number) else type(x)


def _print(*args: Any, **kwargs: Any) -> None:
    context = running()
    if context.prints is None or context.logs:
        context.refuse("prints values in a branch or loop that depends on values, or in a program")
        return
    context.prints.append((args, kwargs))


def _text(function: Any) -> Callable[..., Any]:
    def text(x: Any, *args: Any) -> Any:
        return function(shown(x), *args)

    return text


def _sqrt(x: Any) -> Any:
    x = (of_item(x) if isinstance(x, Tensor) else number(x)).as_kind(float)
    fail_where(x < 0.0, ValueError("math domain error"))
    return Number(float, x.tensor.sqrt())


def _of_float(name: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        x = (of_item(x) if isinstance(x, Tensor) else number(x)).as_kind(float)
        made = getattr(x.tensor, name)()
        return Number(bool if dtype_of(made) == "bool" else float, made)

    return function


def _integral(name: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        x = of_item(x) if isinstance(x, Tensor) else x
        return getattr(x, f"__{name}__")()

    return function


def _setattr(held: Any, name: str, value: Any) -> None:
    set_attr(value, held, name)


def _map(f: Any, *many: Any) -> Any:
    return iter([call(f, *items) for items in zip(*many)])


def _sum(items: Any, start: Any = 0) -> Any:
    found = start
    for x in items:
        found = found + x
    return found


def _reduce(f: Any, items: Any, *start: Any) -> Any:
    rest = iter(items)
    found = start[0] if start else next(rest)
    for x in rest:
        found = call(f, found, x)
    return found


_SPECIAL: dict[Any, Callable[..., Any]] = {
    int: _converted(int),
    float: _converted(float),
    bool: truth,
    range: Range,
    min: _extreme(min, "Lt"),
    max: _extreme(max, "Gt"),
    any: _any,
    all: _all,
    sum: _sum,
    map: _map,
    functools.reduce: _reduce,
    isinstance: _isinstance,
    type: _type,
    print: _print,
    str: _text(str),
    repr: _text(repr),
    format: _text(format),
    setattr: _setattr,
    math.sqrt: _sqrt,
    math.fabs: _of_float("abs"),
    math.isnan: _of_float("isnan"),
    math.isinf: _of_float("isinf"),
    math.isfinite: _of_float("isfinite"),
    math.floor: _integral("floor"),
    math.ceil: _integral("ceil"),
    math.trunc: _integral("trunc"),
}


def _range(*args: Any) -> Any:
    dynamic = any(isinstance(a, (Number, Tensor)) or varies(a) for a in args)
    if not dynamic:
        return range(*args)
    made = Range(*args)
    each = steps(made.start, made.stop, made.step)
    return made if each is None else each


_SPECIAL[range] = _range
_PLAIN = (print, setattr, map, functools.reduce)  # that know no numbers which depend on values


# -- modules ----------------------------------------------------------------------------------------


def patch(context: Context, module: Module) -> None:
    """Has the modules of a tree call their forward in its rewritten form, as long as the run lasts."""
    for own in module.modules():
        forward = inspect.getattr_static(type(own), "forward", None)
        state = vars(own)
        if "forward" in state or not isinstance(forward, FunctionType) or is_left_alone(forward):
            continue
        if getattr(forward, "_kiln_ignored", False):
            continue
        state["forward"] = functools.partial(_function_of, forward, own)
        context.patched.append((state, "forward"))


def _function_of(forward: Any, own: Any, /, *args: Any, **kwargs: Any) -> Any:
    return _function(running(), forward, (own, *args), kwargs)
