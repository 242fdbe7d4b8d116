"""Parameters held in a list or a dict: ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter


class _ParameterContainer(Module):
    """What is held is the container's own under its name: a tensor as a parameter, anything else as it is."""

    def _hold(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            value = value if isinstance(value, Parameter) else Parameter(value)
        elif name in self._parameters or name in self._modules:
            delattr(self, name)  # where a parameter is, assignment takes no other value
        setattr(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{type(self).__name__} should not be called.")

    def _items(self) -> Iterable[tuple[str, Any]]:
        """Names with what is held."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return "\n".join(f"  ({name}): {self._shown(value)}" for name, value in self._items())

    def _shown(self, value: Any) -> str:
        if not isinstance(value, Tensor):
            return f"Object of type: {type(value).__name__}"
        size = "x".join(str(n) for n in value.shape)
        return f"Parameter containing: [{self._kind(value)} of size {size}]"

    def _kind(self, value: Tensor) -> str:
        return str(value.dtype)


class ParameterList(_ParameterContainer):
    """A list of parameters that are the module's; tensors put into it become parameters.

    What is no tensor is held as it is. TypeError for values that cannot be iterated over, IndexError for an
    index out of range.

    >>> import kiln
    >>> kiln.nn.ParameterList([kiln.ones(2, 3), kiln.ones(3)])
    ParameterList(
        (0): Parameter containing: [kiln.float32 of size 2x3]
        (1): Parameter containing: [kiln.float32 of size 3]
    )
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def _name(self, index: int) -> str:
        if not -self._size <= index < self._size:
            raise IndexError(f"index {index} is out of range")
        return str(index % self._size)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return getattr(self, self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        self._hold(self._name(index), value)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, str(k)) for k in range(self._size)])

    def append(self, value: Any) -> ParameterList:
        """Add a value at the end."""
        self._hold(str(self._size), value)
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add values at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            what = type(values).__name__
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {what}")
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def _items(self) -> Iterable[tuple[str, Any]]:
        return ((str(k), value) for k, value in enumerate(self))


class ParameterDict(_ParameterContainer):
    """A dict of parameters that are the module's, in order of insertion; tensors become parameters.

    What is no tensor is held as it is. TypeError for keys that are no str, KeyError for those of attributes
    that a module has.

    >>> import kiln
    >>> kiln.nn.ParameterDict({"scale": kiln.ones(2), "kind": "affine"})
    ParameterDict(
        (scale): Parameter containing: [kiln.FloatTensor of size 2]
        (kind): Object of type: str
    )
    """

    def _kind(self, value: Tensor) -> str:
        return str(value.type())  # a list's say the dtype, a dict's the class, as PyTorch's do

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(message("ParameterDict", "a key that is a string", describe(key)))
        if key not in self._keys and hasattr(self, key):
            raise KeyError(f"attribute '{key}' already exists")
        self._hold(key, value)
        self._keys[key] = None

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __or__(self, other: ParameterDict) -> ParameterDict:
        joined = self.copy()
        joined.update(other)
        return joined

    def __ior__(self, other: ParameterDict) -> ParameterDict:
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        """A dict of its own of the same parameters."""
        return type(self)(dict(self.items()))

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        """The parameters."""
        return (self[key] for key in self._keys)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names with parameters."""
        return ((key, self[key]) for key in self._keys)

    _items = items

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter called `key`, or `default`."""
        return self[key] if key in self else default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The parameter called `key`; if there is none, `default` becomes it."""
        if key not in self:
            self[key] = default
        return self[key]

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A dict with `default` under each of `keys`."""
        return type(self)((key, default) for key in keys)

    def pop(self, key: str) -> Any:
        """Take the parameter called `key` out and give it back."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Take the last (name, parameter) out and give it back."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def clear(self) -> None:
        """Take every parameter out."""
        for key in list(self._keys):
            del self[key]

    def update(self, parameters: Any) -> None:
        """Add named parameters, of a dict or as pairs, replacing those of the same names."""
        if not isinstance(parameters, Iterable):
            what = type(parameters).__name__
            raise TypeError(
                f"ParametersDict.update should be called with an iterable of key/value pairs, but got {what}"
            )
        named = parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else parameters
        for key, value in list(named):
            self[key] = value
