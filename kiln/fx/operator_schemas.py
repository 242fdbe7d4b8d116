"""Calls by their parameters: which argument is which, and defaults."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx.calls import parameters_of
from kiln.fx.proxy import refuse_writing

__all__ = [
    "ArgsKwargsPair", "check_for_mutable_operation", "create_type_hint", "get_signature_for_torch_op",
    "normalize_function", "normalize_module", "type_matches",
]  # fmt: skip

_NOT_BY_NAME = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


class ArgsKwargsPair(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def check_for_mutable_operation(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """RuntimeError for a call of one of kiln's functions that writes into a tensor that it is given."""
    refuse_writing(target, kwargs)


def get_signature_for_torch_op(op: Callable[..., Any]) -> list[inspect.Signature] | None:
    """The signatures of one of kiln's functions, of which there is one each; None for another object."""
    if not isinstance(op, (_core.Op, _core.Function)):
        return None
    own = inspect.signature(op)
    if not hasattr(op, "_kiln_more") and not {"args", "inplace"} <= own.parameters.keys():
        return [own]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Signature(
            [
                inspect.Parameter(
                    name, kind, default=inspect.Parameter.empty if default is _core.REQUIRED else default
                )
                for name, default in parameters_of(op)
            ]
        )
    ]


def create_type_hint(x: object) -> object:
    """The annotation of a list or tuple of types: of one that all of them are, or of any.

    >>> create_type_hint([int, int]), create_type_hint((int, bool))
    (list[int], tuple[int, ...])
    """
    if not isinstance(x, (list, tuple)):
        return x
    base: Any = next((a for a in x if all(type_matches(a, b) for b in x)), Any) if x else Any
    return list[base] if isinstance(x, list) else tuple[base, ...]


def type_matches(signature_type: Any, argument_type: Any) -> bool:
    """Whether a value of one type may be given where another is asked for.

    >>> type_matches(float | None, float), type_matches(list[int], list[str])
    (True, False)
    """
    asked, given = typing.get_origin(signature_type), typing.get_origin(argument_type)
    if signature_type is argument_type or signature_type is Any:
        return True
    if asked in (typing.Union, types.UnionType):
        return any(type_matches(kind, argument_type) for kind in typing.get_args(signature_type))
    if signature_type is int and argument_type is _core.dtype:
        return True  # in PyTorch's schemas a dtype is a number
    if asked is list:
        (item,) = typing.get_args(signature_type) or (Any,)
        if item is int and argument_type is int:
            return True  # one number is a size in each dim
        if given not in (list, tuple):
            return False
        items = [kind for kind in typing.get_args(argument_type) if kind is not Ellipsis]
        return all(type_matches(item, kind) for kind in items)
    if inspect.isclass(signature_type) and inspect.isclass(argument_type) and given is None and asked is None:
        return issubclass(argument_type, signature_type)
    return False


def _normalized(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], only_kwargs: bool
) -> ArgsKwargsPair | None:
    """Arguments in the order of the parameters, with defaults; None if they do not fit."""
    parameters = [p for p in signature.parameters.values() if p.name != "out" or "out" in kwargs]
    if any(p.kind in _NOT_BY_NAME for p in parameters):
        return None
    try:
        bound = signature.replace(parameters=parameters).bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    by_place = [] if only_kwargs else [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    given = dict(bound.arguments)
    return ArgsKwargsPair(tuple(given.pop(name) for name in by_place), given)


def normalize_function(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    arg_types: tuple[Any, ...] | None = None,
    kwarg_types: dict[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """The arguments of a call of one of kiln's functions, those that were left out too: by place, then by
    name; or all by name. None if the function is not kiln's, takes any number of arguments, or not these.

    Types of arguments choose nothing, for a function has one signature.

    >>> import kiln
    >>> normalize_function(kiln.flatten, (1, 2), normalize_to_only_use_kwargs=True).kwargs
    {'input': 1, 'start_dim': 2, 'end_dim': -1}
    """
    signatures = get_signature_for_torch_op(target)
    if signatures is None:
        return None
    return _normalized(signatures[0], args, kwargs or {}, normalize_to_only_use_kwargs)


def normalize_module(
    root: Any,
    target: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """The arguments of a call of a submodule, as `normalize_function` has them; None if it is none of kiln's
    layers. RuntimeError if there is no such module.
    """
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise RuntimeError(
            f"Tried to normalize arguments for module target {target} but root did not have that target!"
        ) from error
    if not type(module).__module__.startswith(("kiln.nn", "torch.nn")):
        return None
    return _normalized(inspect.signature(module.forward), args, kwargs or {}, normalize_to_only_use_kwargs)


_hint_missing(__name__)
