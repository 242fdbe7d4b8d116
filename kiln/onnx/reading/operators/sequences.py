"""Sequences of tensors, which are lists while a model is followed, and optional values."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln.onnx.reading.known import Known
from kiln.onnx.reading.operators.table import Array, Number, Numbers, Value, as_array, axis_of, operator
from kiln.onnx.reading.refusal import LoadError


@operator("SequenceConstruct")
def _sequence_construct(*items: Array) -> Any:
    return list(items)


@operator("SequenceEmpty")
def _sequence_empty(*, dtype: int = 1) -> Any:
    return []


@operator("SequenceAt")
def _sequence_at(items: Value, at: Number) -> Any:
    return items[_place(items, at)]


@operator("SequenceErase")
def _sequence_erase(items: Value, at: Number | None = None) -> Any:
    place = len(items) - 1 if at is None else _place(items, at)
    return [x for k, x in enumerate(items) if k != place]


@operator("SequenceInsert")
def _sequence_insert(items: Value, item: Array, at: Number | None = None) -> Any:
    place = len(items) if at is None or at == len(items) else _place(items, at)
    return [*items[:place], item, *items[place:]]


def _place(items: Any, at: Any) -> int:
    """A position in a sequence."""
    if not isinstance(items, list) or not -len(items) <= at < len(items):
        raise LoadError(f"position {at} in a sequence of {len(items)}")
    return int(at) % len(items)


@operator("SequenceLength")
def _sequence_length(items: Value) -> Any:
    return Known("int64", [len(items)], False)


@operator("ConcatFromSequence")
def _concat_from_sequence(items: Value, *, axis: int, new_axis: int = 0) -> Any:
    arrays = [as_array(x) for x in items]
    return ops.stack(arrays, axis) if new_axis else ops.cat(arrays, axis)


@operator("SplitToSequence")
def _split_to_sequence(x: Array, lengths: Numbers | None = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    dim = axis_of(axis, x.ndim)
    if lengths is None:
        parts = list(ops.split(x, 1, dim))
        return parts if keepdims else [part.squeeze(dim) for part in parts]
    return list(ops.split(x, lengths.items if lengths.is_list else lengths.items[0], dim))


@operator("Optional")
def _optional(x: Value | None = None, *, type: Any = None) -> Any:
    return x


@operator("OptionalGetElement")
def _optional_get_element(x: Value) -> Any:
    return x


@operator("OptionalHasElement")
def _optional_has_element(x: Value | None = None) -> Any:
    return Known("bool", [x is not None], False)
