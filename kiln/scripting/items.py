"""Items and attributes: what is read by a position that depends on values, and what is changed."""

from __future__ import annotations

import operator
from typing import Any

from kiln.nn import Module
from kiln.scripting.arithmetic import beside_tensor
from kiln.scripting.blocks import Slot
from kiln.scripting.conditions import choose, just
from kiln.scripting.context import running
from kiln.scripting.failing import fail_where
from kiln.scripting.numbers import Number, Tensor, dtype_of, of_item, own
from kiln.scripting.sizes import Rows, has_rows

_INTS = ("int64", "int32", "int16", "int8", "uint8")


def _position(x: Any) -> bool:
    return isinstance(x, Number) or (isinstance(x, Tensor) and not x.ndim and dtype_of(x) in _INTS)


def _plain(key: Any) -> Any:
    """A key in which numbers are tensors."""
    if isinstance(key, tuple):
        return tuple([_plain(k) for k in key])
    if isinstance(key, slice):
        if any(isinstance(k, (Number, Tensor)) for k in (key.start, key.stop, key.step)):
            running().refuse("takes a slice whose length depends on the value of a tensor")
        return key
    return key.tensor if isinstance(key, Number) else key


def _check(held: Any, key: Any) -> None:
    """IndexError where a position that depends on values is none of a tensor's."""
    dim = 0
    for k in key if isinstance(key, tuple) else (key,):
        if k is None or k is Ellipsis:
            if k is Ellipsis:
                return
            continue
        if _position(k):
            i = k.tensor if isinstance(k, Number) else k
            size = held.shape[dim]
            wrong = (i < -size) | (i >= size)
            fail_where(
                Number(bool, wrong),
                IndexError(f"index ? is out of bounds for dimension {dim} with size {size}"),
            )
        dim += 1


def item(held: Any, key: Any) -> Any:
    """held[key]"""
    if type(held) in (list, tuple) and has_rows(held):
        return _of_rows(held, key)
    if isinstance(held, Tensor) and not running().pinned:
        given = _plain(key)
        if not any(map(_position, key if isinstance(key, tuple) else (key,))):
            return held[given]
        _check(held, key)
        made = held[given]
        if all(
            not isinstance(k, (Tensor, list)) or _position(k)
            for k in (key if isinstance(key, tuple) else (key,))
        ):
            running().recorder.may_be(own(made), own(held))  # to Python a view
        return made
    if isinstance(held, (list, tuple)) and _position(key) and not running().pinned:
        return _of_list(held, key if isinstance(key, Number) else of_item(key))
    made = held[key]
    return running().new(made) if isinstance(key, slice) and isinstance(made, list) else made


def _of_rows(held: Any, key: Any) -> Any:
    """An item of a list that has as many as a size says."""
    if isinstance(key, Number) and len(held) == 1:
        each = held[0].each()
        return each.item([item(p, key) for p in each.parts])
    if type(key) is slice and key == slice(None):
        return running().new(held[key])
    if type(key) is not int:
        running().refuse("takes an item or a part of a list whose length is a size that varies")
    at = key if key >= 0 else -1 - key
    for k, x in enumerate(held if key >= 0 else reversed(held)):
        if type(x) is Rows:  # (of more than it has the position is refused, or checked at each call)
            each = x.each()
            return each.item([p[key - k if key >= 0 else key + k] for p in each.parts])
        if k == at:
            return x
    raise IndexError("list index out of range")


def _of_list(held: Any, key: Any) -> Any:
    """An item of a list, at a position that depends on values: one branch for each."""
    size = len(held)
    if not size:
        raise IndexError("list index out of range")
    fail_where(key.__lt__(-size) | key.__ge__(size), IndexError("list index out of range"))
    at = choose(key < 0, lambda: key + size, lambda: key, 0)
    found = held[-1]
    for k in range(size - 2, -1, -1):
        found = choose(at == k, just(held[k]), just(found), 0)
    return found


# -- changes ----------------------------------------------------------------------------------------


def contents(held: Any) -> Slot:
    """What a list, dict or set holds."""

    def read() -> Any:
        return type(held)(held) if type(held) in (list, dict, set) else held.copy()

    def write(value: Any) -> None:
        if isinstance(held, list):
            held[:] = value
        else:
            held.clear()
            held.update(value)

    return Slot(f"a {type(held).__name__}", read, write)


def global_slot(names: dict[str, Any], name: str) -> Slot:
    """A global name."""

    def write(value: Any) -> None:
        if value is _ABSENT:
            names.pop(name, None)
        else:
            names[name] = value

    return Slot(f"the global {name}", lambda: names.get(name, _ABSENT), write)


def cell_slot(cell: Any, name: str) -> Slot:
    """A name of the function around."""

    def write(value: Any) -> None:
        cell.cell_contents = value

    return Slot(f"the name {name} of the function around", lambda: cell.cell_contents, write)


def changes(held: Any, adds: bool = False) -> None:
    """A container is about to be changed; `adds`: behind what it has."""
    if not adds and running().grows and has_rows(held):
        running().refuse("changes items of a list whose length is a size that varies")
    running().change(held, None, contents(held), f"changes a {type(held).__name__}")


def set_item(value: Any, held: Any, key: Any) -> None:
    """held[key] = value"""
    pinned = running().pinned
    if isinstance(held, Tensor) and not pinned:
        if any(map(_position, key if isinstance(key, tuple) else (key,))):
            _check(held, key)
        held[_plain(key)] = value.beside(held) if isinstance(value, Number) else value
        return
    if isinstance(held, (list, dict)):
        if isinstance(key, Number) or (isinstance(held, list) and isinstance(key, Tensor) and not pinned):
            running().refuse("sets an item of a list or dict at a position that depends on values")
        changes(held)
    held[key] = value


def del_item(held: Any, key: Any) -> None:
    """del held[key]"""
    if isinstance(held, (list, dict)):
        changes(held)
    del held[key]


_ABSENT = object()


def set_attr(value: Any, held: Any, name: str) -> None:
    """held.name = value"""
    context = running()
    if id(held) in context.made and not context.logs:
        setattr(held, name, value)
        return
    if isinstance(held, Module):
        buffer = held._buffers.get(name)
        if buffer is not None and isinstance(value, Tensor):
            if dtype_of(buffer) != dtype_of(value) or tuple(buffer.shape) != tuple(value.shape):
                context.refuse(f"gives the buffer {name} another shape or dtype")
            buffers = held._buffers
            if id(buffers) not in context.made and not context.recorder.stands_for(own(buffer)):
                context.refuse(f"sets the buffer {name} of a module that is not the script's own")
            # while the module is followed its buffers stand for those of each call, written at its end
            context.made.setdefault(id(buffers), (buffers, 0))
            slot = Slot(f"the buffer {name}", lambda: buffers[name], lambda x: buffers.update({name: x}))
            context.change(buffers, name, slot, f"sets the buffer {name}")
            buffers[name] = value
            return
        if name in held._parameters or name in held._modules:
            context.refuse(f"gives a module another {name}")
    if isinstance(held, Tensor):
        setattr(held, name, value)
        return

    def read() -> Any:
        return vars(held).get(name, _ABSENT) if hasattr(held, "__dict__") else getattr(held, name, _ABSENT)

    def write(x: Any) -> None:
        delattr(held, name) if x is _ABSENT else setattr(held, name, x)

    context.change(
        held, name, Slot(f"the attribute {name}", read, write), f"sets the attribute {name} of an object"
    )
    setattr(held, name, value)


def augment(name: str, x: Any, value: Any) -> Any:
    """x += value, of a name"""
    if isinstance(x, Tensor) and isinstance(value, Number):
        plain = value.beside(x)
        if dtype_of(plain) == dtype_of(x):
            return getattr(operator, name)(x, plain)
        return x.copy_(beside_tensor(name[1:], x, value))
    if isinstance(x, list) and name in ("iadd", "imul"):
        changes(x, name == "iadd")
    if isinstance(x, (dict, set)):
        changes(x)
    return getattr(operator, name)(x, value)


def augment_attr(name: str, held: Any, attr: str, value: Any) -> None:
    """held.attr += value"""
    set_attr(augment(name, getattr(held, attr), value), held, attr)


def augment_item(name: str, held: Any, key: Any, value: Any) -> None:
    """held[key] += value"""
    set_item(augment(name, item(held, key), value), held, key)
