"""Storages, under the name of PyTorch's module; what a pickle names of one.

kiln.FloatStorage(4), kiln.LongStorage([1, 2])     a TypedStorage of that dtype
isinstance(x.storage(), kiln.FloatStorage)         whether x is of it
"""

from __future__ import annotations

import io
from typing import Any

from kiln import _core
from kiln.device import not_compiled
from kiln.ops.views.storage import TypedStorage, UntypedStorage
from kiln.serialization import load

__all__ = ["TypedStorage", "UntypedStorage", "_load_from_bytes"]


def _load_from_bytes(b: bytes) -> Any:
    """A storage in one of PyTorch's files inside of a pickle: data, whatever the pickle may run."""
    return load(io.BytesIO(b))


class StorageType(type(TypedStorage)):  # type: ignore[misc]
    """The type of FloatStorage and its like: calling one makes a TypedStorage of its dtype."""

    dtype: Any

    @_core.Function
    def __call__(cls, *args: Any, **kwargs: Any) -> TypedStorage:
        name = f"{cls.__module__}.{cls.__name__}"
        for given in sorted({*kwargs} - {"wrap_storage"}):
            raise RuntimeError(
                f"{name}.__new__ received an invalid combination of arguments: Keyword argument '{given}' "
                "cannot be specified"
            )
        if len(args) > 1 or (args and kwargs):
            raise RuntimeError(
                f"{name}.__new__ received an invalid combination of arguments: Too many positional arguments"
            )
        if args and isinstance(args[0], _core.Tensor):
            raise TypeError(
                f"{name}.__new__ received an invalid combination of arguments: expected a number of elements "
                "or a sequence of them; a tensor's memory is x.storage()"
            )
        try:
            return TypedStorage(*args, **kwargs, dtype=cls.dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            if len(error.args) == 1:  # PyTorch's words where it has some, of the class that was called
                error.args = (
                    (f"{name}.{error}",) if str(error).startswith("__new__") else (f"{name}: {error}",)
                )
            raise

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, TypedStorage) and x.dtype is cls.dtype


class _LegacyStorage(TypedStorage):
    """What FloatStorage and its like have in common."""

    __slots__ = ()
    kind: Any  # the dtype of its storages

    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Any:
        """A copy of memory of Python's, elements of the class's dtype in the order that is said."""
        return TypedStorage.from_buffer(*args, **{**kwargs, "dtype": cls.kind})

    @classmethod
    def from_file(cls, filename: Any, shared: bool = False, size: int = 0) -> Any:
        """The first elements of a file as memory; see `UntypedStorage.from_file`."""
        whole = UntypedStorage.from_file(filename, shared, size * cls.kind.itemsize)
        return TypedStorage(wrap_storage=whole, dtype=cls.kind)

    @classmethod
    def _new_shared(cls, size: int) -> Any:  # libraries make memory for workers by it
        return TypedStorage(size, dtype=cls.kind).share_memory_()


def _made(name: str, module: str, dtype: Any, meta: Any) -> Any:
    space = {
        "__module__": module,
        "__slots__": (),
        "dtype": dtype,
        "kind": dtype,
        "__doc__": f"Makes storages of {dtype.name}.",
    }
    return meta(name, (_LegacyStorage,), space)


BFloat16Storage: Any = _made("BFloat16Storage", "kiln", _core.bfloat16, StorageType)
BoolStorage: Any = _made("BoolStorage", "kiln", _core.bool, StorageType)
ByteStorage: Any = _made("ByteStorage", "kiln", _core.uint8, StorageType)
CharStorage: Any = _made("CharStorage", "kiln", _core.int8, StorageType)
DoubleStorage: Any = _made("DoubleStorage", "kiln", _core.float64, StorageType)
FloatStorage: Any = _made("FloatStorage", "kiln", _core.float32, StorageType)
HalfStorage: Any = _made("HalfStorage", "kiln", _core.float16, StorageType)
IntStorage: Any = _made("IntStorage", "kiln", _core.int32, StorageType)
LongStorage: Any = _made("LongStorage", "kiln", _core.int64, StorageType)
ShortStorage: Any = _made("ShortStorage", "kiln", _core.int16, StorageType)


class _Elsewhere(StorageType):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        not_compiled("cuda")

    def __instancecheck__(cls, x: Any) -> bool:
        return False


def elsewhere(name: str) -> Any:
    """CUDA's storages of a dtype, by the class's name: no storage is one."""
    return _made(name, "kiln.cuda", globals()[name].dtype, _Elsewhere)
