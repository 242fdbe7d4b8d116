"""What the names in PyTorch's pickles mean here: functions that make tensors, kinds of storage, dtypes.

    torch._utils._rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks)
    torch.FloatStorage             a storage's dtype
    torch.Size, torch.float32, collections.OrderedDict, ...

All a file may name without being asked for it: everything here makes data and nothing else. Arguments come
from the file, so each function looks at them first.
"""

from __future__ import annotations

import codecs
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from kiln import _core, ops
from kiln._core import Tensor
from kiln.device import device
from kiln.layout import strided
from kiln.nn.parameter import Buffer, Parameter
from kiln.ops.creation.data import set_attributes
from kiln.ops.views.pickling import looking
from kiln.ops.views.storage import TypedStorage, UntypedStorage
from kiln.serialization.source import FEW_ALIKE, MAX_SIZE, Damaged, crowded

MAX_KEY = 64  # parts of a key that is a tuple
KEYS = (str, int, float, bool, bytes, complex, type(None), Tensor, device, type(_core.float32))


class StorageType(NamedTuple):
    """A kind of storage that a file names: its dtype, None for one that kiln has not."""

    name: str
    dtype: Any


DTYPES = {
    name: getattr(_core, name)
    for name in "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
}
_STORAGES = {
    "BoolStorage": _core.bool,
    "ByteStorage": _core.uint8,
    "CharStorage": _core.int8,
    "ShortStorage": _core.int16,
    "IntStorage": _core.int32,
    "LongStorage": _core.int64,
    "HalfStorage": _core.float16,
    "BFloat16Storage": _core.bfloat16,
    "FloatStorage": _core.float32,
    "DoubleStorage": _core.float64,
    "UntypedStorage": None,  # bytes
}
STORAGE_OF = {dtype: name for name, dtype in _STORAGES.items() if dtype is not None}
_MISSING = {
    **dict.fromkeys("ComplexFloatStorage ComplexDoubleStorage ComplexHalfStorage".split(), "complex numbers"),
    **dict.fromkeys("complex32 complex64 complex128".split(), "complex numbers"),
    **dict.fromkeys("QInt8Storage QInt32Storage QUInt8Storage QUInt4x2Storage QUInt2x4Storage".split(),
                    "quantized tensors"),
    **dict.fromkeys("qint8 qint32 quint8 quint4x2 quint2x4".split(), "quantized tensors"),
    **dict.fromkeys("uint16 uint32 uint64".split(), "unsigned integers but uint8"),
    **dict.fromkeys("float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split(),
                    "floats of 8 bits"),
}  # fmt: skip


class Missing(Exception):
    """What a whole file holds and kiln has not, in words."""


def missing(what: str) -> NoReturn:
    """The file is whole, and holds what kiln has not."""
    raise Missing(f"the file holds what kiln has not: {what}")


def need(holds: bool, expected: str, *came: Any) -> None:
    """Refuse the file unless `holds`; what came is put into the sentence only then, cut where it is long."""
    must(holds, f"expected {expected}", *came)


def must(holds: bool, text: str, *came: Any) -> None:
    """The same in words of another form."""
    if not holds:
        raise Damaged(text.format(*map(_said, came)))


def _said(value: Any) -> str:
    """A value of a file in a few words: the text of a list that holds itself ten times has no end."""
    if isinstance(value, str):
        return repr(value[:80])
    if isinstance(value, int):
        return str(value) if value.bit_length() < 200 else "a long integer"
    if isinstance(value, tuple) and len(value) <= 8 and all(type(part) is int for part in value):
        return f"({', '.join(map(_said, value))})"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return f"a {type(value).__name__}"


# -- tensors ------------------------------------------------------------------------------------------


def rebuild_tensor(storage: Any, offset: Any, sizes: Any, strides: Any) -> Tensor:
    """torch._utils._rebuild_tensor: a tensor of a storage."""
    need(isinstance(storage, TypedStorage), "a storage, got {}", storage)
    return _placed(storage, storage.dtype, offset, sizes, strides)


def rebuild_tensor_v2(
    storage: Any, offset: Any, sizes: Any, strides: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> Tensor:
    """torch._utils._rebuild_tensor_v2: a tensor that may require gradients."""
    return _leaf(rebuild_tensor(storage, offset, sizes, strides), requires_grad)


def rebuild_tensor_v3(
    storage: Any, offset: Any, sizes: Any, strides: Any, requires_grad: Any, hooks: Any, dtype: Any,
    metadata: Any = None,
) -> Tensor:  # fmt: skip
    """torch._utils._rebuild_tensor_v3: of a dtype that is not the storage's."""
    need(isinstance(storage, UntypedStorage), "a storage, got {}", storage)
    need(type(dtype) is type(_core.float32), "a dtype, got {}", dtype)
    return _leaf(_placed(storage, dtype, offset, sizes, strides), requires_grad)


def _placed(storage: Any, dtype: Any, offset: Any, sizes: Any, strides: Any) -> Tensor:
    """A tensor of a storage; every place it names is inside."""
    shapes = all(isinstance(x, tuple) and len(x) <= 64 for x in (sizes, strides))
    need(shapes and len(sizes) == len(strides), "at most 64 sizes and as many strides")
    whole = all(type(n) is int and 0 <= n <= MAX_SIZE for n in (offset, *sizes, *strides))
    need(whole, "sizes, strides and offset that are not negative, got {} {} {}", sizes, strides, offset)
    held, count, reach = storage.nbytes() // dtype.itemsize, 1, offset
    for n, stride in zip(sizes, strides):
        count *= n or 1
        reach += (n - 1) * stride if n else 0
        need(count * 8 <= MAX_SIZE and stride * 8 <= MAX_SIZE, "sizes that can be counted, got {}", sizes)
    inside = reach < held if all(sizes) else offset <= held
    need(inside, "sizes {} and strides {} from {} on in {} elements", sizes, strides, offset, held)
    if not all(sizes):
        return ops.empty(sizes, dtype=dtype)
    flat = storage._owner if storage._owner.dtype is dtype else storage.elements(dtype)
    made: Tensor = looking(flat, sizes, strides, offset)
    return made


def _leaf(made: Tensor, requires_grad: Any) -> Tensor:
    need(type(requires_grad) is bool, "requires_grad True or False, got {}", requires_grad)
    need(not requires_grad or made.dtype.is_floating_point, "floats to require gradients")
    return made.requires_grad_() if requires_grad else made


def rebuild_parameter(data: Any, requires_grad: Any, hooks: Any) -> Any:
    """torch._utils._rebuild_parameter."""
    need(isinstance(data, Tensor), "a tensor as a parameter's data, got {}", data)
    _leaf(data.detach(), requires_grad)
    return Parameter(data, requires_grad)


def rebuild_parameter_with_state(data: Any, requires_grad: Any, hooks: Any, state: Any) -> Any:
    """torch._utils._rebuild_parameter_with_state: with what a program put on it."""
    made = rebuild_parameter(data, requires_grad, hooks)
    put_on(made, state)
    return made


def rebuild_from_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor of a class, with what a program put on it."""
    known = function in FUNCTIONS.values() and function is not rebuild_from_type
    need(known, "a function that makes a tensor, got {}", function)
    need(isinstance(args, tuple), "arguments, got {}", args)
    need(isinstance(kind, type) and issubclass(kind, Tensor), "a class of tensors, got {}", kind)
    made = function(*args)
    need(isinstance(made, Tensor), "a tensor, got {}", made)
    state = checked_state(state)
    if isinstance(state, dict) and state.pop("_is_buffer", False):
        made = Buffer(made, persistent=bool(state.get("persistent", True)))
    elif kind is not type(made):
        made = Tensor._make_subclass(kind, made, made.requires_grad)
    put_on(made, state)
    return made


def checked_state(state: Any) -> Any:
    """Attributes that a file gives to an object: a dict of names, or a dict and one of slots."""
    if isinstance(state, tuple):
        need(len(state) == 2, "attributes and slots, got {}", state)
        return tuple(checked_state(part) for part in state)
    named = state is None or type(state) is dict and all(isinstance(name, str) for name in state)
    need(named, "attributes by name, got {}", state)
    return None if state is None else dict(state)


def put_on(made: Tensor, state: Any) -> None:
    """Gives a tensor what a program put on it. A slot is one of a program's class, not what Tensor itself has
    (`data`, `__class__`), which other code may rely on.
    """
    state = checked_state(state)
    slots = state[1] if isinstance(state, tuple) else None
    for name in slots or ():
        need(not hasattr(Tensor, name), "the slots of a class of tensors, got {}", name)
    set_attributes(made, state)


# -- plain data ---------------------------------------------------------------------------------------


def _size(sizes: Any = ()) -> Any:
    need(isinstance(sizes, tuple) and all(type(n) is int for n in sizes), "sizes, got {}", sizes)
    return _core.Size(sizes)


def _device(kind: Any, index: Any = None) -> Any:
    need(isinstance(kind, str), "the name of a device, got {}", kind)
    need(index is None or type(index) is int, "the number of a device, got {}", index)
    try:
        return device(kind) if index is None else device(kind, index)
    except RuntimeError as error:
        raise Missing(str(error)) from None


def _layout(name: Any) -> Any:
    if name != "torch.strided":
        missing(f"the layout {name!s:.40}")
    return strided


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes, as protocol 2 writes them."""
    need(isinstance(text, str) and encoding == "latin1", "bytes as text in latin1, got {}", text)
    try:
        return codecs.encode(text, "latin1")
    except UnicodeEncodeError:
        raise Damaged("expected bytes as text in latin1, got a character that is none") from None


def _bytearray(*content: Any) -> bytearray:
    if len(content) == 2:  # text and its encoding, as protocol 2 of Python 3 writes them
        return bytearray(_encode(*content))
    need(not content or isinstance(content[0], (bytes, bytearray)), "bytes, got {}", content)
    return bytearray(*content)


def _complex(real: Any, imaginary: Any) -> complex:
    need(type(real) is float and type(imaginary) is float, "two floats, got {}", real)
    return complex(real, imaginary)


def _set(items: Any = ()) -> set[Any]:
    need(isinstance(items, list), "a list of items, got {}", items)
    check_keys(items)
    return set(items)


def _dict(items: Any = None) -> dict[Any, Any]:
    need(items is None or type(items) is dict, "a dict, got {}", items)
    return dict(items or {})


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = isinstance(items, list) and all(isinstance(x, (list, tuple)) and len(x) == 2 for x in items)
    need(not items or pairs, "pairs of keys and values, got {}", items)
    check_keys([key for key, _ in items])
    return OrderedDict(items)


def _counter(items: Any = None) -> Counter[Any]:
    need(items is None or type(items) is dict, "counts by key, got {}", items)
    found: Counter[Any] = Counter()
    dict.update(found, items or {})
    return found


def check_keys(keys: Any) -> None:
    """Keys for a dict or a set: of plain data, and not chosen so that many have one hash."""
    for key in keys:
        _check_key(key)
    need(not crowded(keys), FEW_ALIKE)


def _check_key(key: Any) -> None:
    """A key whose hash takes no longer than it is; a tuple of tuples may be small and take for ever."""
    waiting, seen = [key], 0
    while waiting:
        part, seen = waiting.pop(), seen + 1
        need(seen <= MAX_KEY, f"keys of at most {MAX_KEY} parts")
        if isinstance(part, tuple):
            need(len(part) <= MAX_KEY, f"keys of at most {MAX_KEY} parts")
            waiting.extend(part)
            continue
        need(isinstance(part, KEYS), "a key that is plain data, got {}", part)
        need(type(part) is not int or part.bit_length() <= 1024, "keys of at most 1024 bits")


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any) -> NoReturn:
        missing(what)

    return refuse


_UTILS = "torch._utils._rebuild_"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{_UTILS}tensor": rebuild_tensor,
    f"{_UTILS}tensor_v2": rebuild_tensor_v2,
    f"{_UTILS}tensor_v3": rebuild_tensor_v3,
    f"{_UTILS}parameter": rebuild_parameter,
    f"{_UTILS}parameter_with_state": rebuild_parameter_with_state,
    "torch._tensor._rebuild_from_type_v2": rebuild_from_type,
    f"{_UTILS}sparse_tensor": _refusing("sparse tensors"),
    f"{_UTILS}sparse_csr_tensor": _refusing("sparse tensors"),
    f"{_UTILS}qtensor": _refusing("quantized tensors"),
    f"{_UTILS}nested_tensor": _refusing("nested tensors"),
    f"{_UTILS}meta_tensor_no_storage": _refusing("tensors without memory (device meta)"),
    f"{_UTILS}wrapper_subclass": _refusing("tensors made of others"),
    f"{_UTILS}device_tensor_from_numpy": _refusing("tensors of another device, as NumPy arrays"),
    f"{_UTILS}device_tensor_from_cpu_tensor": _refusing("tensors of another device, as the CPU's"),
    "torch.serialization._get_layout": _layout,
    "torch.Size": _size,
    "torch.device": _device,
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counter,
    "builtins.set": _set,
    "builtins.dict": _dict,
    "builtins.bytearray": _bytearray,
    "builtins.complex": _complex,
    "_codecs.encode": _encode,
}  # fmt: skip
CLASSES: dict[str, Any] = {
    "torch.Tensor": Tensor,
    "torch.nn.parameter.Parameter": Parameter,
    "torch.nn.parameter.Buffer": Buffer,
}


def meaning(name: str) -> Any:
    """What a name in PyTorch's pickles stands for; None for one that has no meaning here."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in CLASSES:
        return CLASSES[name]
    module, _, last = name.rpartition(".")
    if last in DTYPES and module == "torch":
        return DTYPES[last]
    if last in _STORAGES and module in ("torch", "torch.storage", "torch.cuda"):
        return StorageType(last, _STORAGES[last])
    if last in _MISSING and module in ("torch", "torch.cuda"):
        return StorageType(last, None) if last.endswith("Storage") else missing(_MISSING[last])
    return None


def storage_dtype(kind: Any) -> Any:
    """The dtype of a storage that a file names by its kind."""
    need(isinstance(kind, StorageType), "a kind of storage, got {}", kind)
    if kind.dtype is None and kind.name in _MISSING:
        missing(_MISSING[kind.name])
    return kind.dtype or _core.uint8
