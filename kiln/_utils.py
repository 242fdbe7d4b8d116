"""What PyTorch has in `torch._utils`: functions that Python's pickles of its tensors name, lists of tensors
as one, exceptions of other threads and processes. Libraries read them there.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.absent import hint_missing as _hint_missing
from kiln.device import device as _device
from kiln.serialization import words

_rebuild_tensor = words.rebuild_tensor
_rebuild_tensor_v2 = words.rebuild_tensor_v2
_rebuild_tensor_v3 = words.rebuild_tensor_v3
_rebuild_parameter = words.rebuild_parameter
_rebuild_parameter_with_state = words.rebuild_parameter_with_state


def _flatten_dense_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Their elements in one tensor of one dim, a copy.

    >>> from kiln._utils import _flatten_dense_tensors, _unflatten_dense_tensors
    >>> parts = [kiln.ones(2), kiln.zeros(1, 2)]
    >>> _unflatten_dense_tensors(_flatten_dense_tensors(parts), parts)
    (tensor([1., 1.]), tensor([[0., 0.]]))
    """
    flat: Tensor = ops.cat([x.reshape(-1) for x in tensors])
    return flat


def _unflatten_dense_tensors(flat: Tensor, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Views of `flat` in the shapes of the tensors, one after the other; what has no elements is new."""
    made, at = [], 0
    for x in tensors:
        count = x.numel()
        made.append(flat.narrow(0, at, count).view(x.shape) if count else ops.empty_like(x))
        at += count
    return tuple(made)


def _take_tensors(tensors: Iterable[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """The tensors in lists of one dtype and at most `size_limit` bytes (a larger tensor by itself), as they
    fill; of each dtype in order.
    """
    waiting: dict[Any, tuple[list[Tensor], int]] = {}
    for x in tensors:
        size = x.numel() * x.element_size()
        part, held = waiting.get(x.dtype, ([], 0))
        if part and held + size > size_limit:
            yield part
            part, held = [], 0
        waiting[x.dtype] = [*part, x], held + size
    yield from (part for part, _ in waiting.values())


def _reorder_tensors_as(tensors: Iterable[Tensor], ordered_tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The tensors, in order for each dtype, in the order of dtypes that the others have."""
    by_dtype: dict[Any, list[Tensor]] = {}
    for x in tensors:
        by_dtype.setdefault(x.dtype, []).append(x)
    turns = {dtype: iter(part) for dtype, part in by_dtype.items()}
    return tuple(next(turns[x.dtype]) for x in ordered_tensors)


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int | None:
    """The number of a device: -1 of the CPU if that is allowed. ValueError for what has none."""
    given = _device(device) if isinstance(device, str) else device
    if isinstance(given, int):
        return given
    kind = getattr(given, "type", None)
    if kind == "cpu":
        if not allow_cpu:
            raise ValueError(f"Expected a non cpu device, but got: {device}")
        return -1
    index: int | None = getattr(given, "index", None)
    if index is not None:
        return index
    if optional and given is None:
        return None
    raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")


def _get_all_device_indices() -> list[int] | None:
    """None: there are no accelerators to count."""
    return None


def _get_available_device_type() -> str | None:
    """None: there is no accelerator."""
    return None


def _import_dotted_name(name: str) -> Any:
    """What a dotted name says: a module, and then attributes.

    >>> kiln._utils._import_dotted_name("math.pi")
    3.141592653589793
    """
    first, *rest = name.split(".")
    found: Any = import_module(first)
    for part in rest:
        found = getattr(found, part)
    return found


class classproperty:
    """A property of a class."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.func(owner)


class KeyErrorMessage(str):
    """A text that a KeyError shows line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ExceptionWrapper:
    """An exception on its way from another thread or process: its type, and its traceback as text."""

    def __init__(self, exc_info: Sequence[Any] | None = None, where: str = "in background") -> None:
        given: Any = sys.exc_info() if exc_info is None else exc_info
        kind, error, trace = given
        told = traceback.TracebackException(kind, error, trace)
        notes, told.__notes__ = told.__notes__ or [], None  # they come first: its last line is the error's
        self.exc_type: type[BaseException] = kind
        self.exc_msg = "".join(told.format())
        self.where = where
        self.notes = "".join(f"{note}\n" for note in notes)

    def reraise(self) -> None:
        """Raises one of the same type; RuntimeError for a type that takes more than a text."""
        text = f"Caught {self.exc_type.__name__} {self.where}.\n{self.notes}Original {self.exc_msg}"
        if self.exc_type is KeyError:
            text = KeyErrorMessage(text)
        try:
            if getattr(self.exc_type, "message", None):
                error = self.exc_type(message=text)  # type: ignore[call-arg]
            else:
                error = self.exc_type(text)
        except Exception:
            error = RuntimeError(text)
        raise error


_hint_missing(__name__)
