"""What a function calls its arguments, and what `dynamic_shapes` says of them by those names."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from kiln.nn import Module
from kiln.tracing.dims import specs_of
from kiln.tracing.trees import Tree

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _parameters(fn: Any) -> list[inspect.Parameter] | None:
    """Those of a function or module; None of what does not tell."""
    try:
        return list(inspect.signature(fn.forward if isinstance(fn, Module) else fn).parameters.values())
    except (TypeError, ValueError):
        return None


def _name_of(parameters: list[inspect.Parameter], kind: Any) -> str | None:
    """The name of the parameter of a kind, `*args` or `**kwargs`, if there is one."""
    return next((p.name for p in parameters if p.kind is kind), None)


def parameter_names(fn: Any, count: int) -> list[str]:
    """What a function calls its first `count` arguments: `x`, or `args[2]` of `*args`."""
    parameters = _parameters(fn) or []
    plain = [p.name for p in parameters if p.kind in _BY_PLACE]
    star = _name_of(parameters, inspect.Parameter.VAR_POSITIONAL) or "args"
    return [plain[k] if k < len(plain) else f"{star}[{k - len(plain)}]" for k in range(count)]


def takes_any_keyword(fn: Any) -> bool:
    """Whether a function has a parameter `**kwargs`."""
    parameters = _parameters(fn)
    return parameters is None or _name_of(parameters, inspect.Parameter.VAR_KEYWORD) is not None


def by_input(fn: Any, args: Sequence[Any], named: int, dims: Any) -> Any:
    """What is said of `*args` and `**kwargs` as a whole, said of each of them: `{"args": (a, b)}` is
    `{"args[0]": a, "args[1]": b}`. `args` are given by place, `named` more by name. ValueError for
    another number of them.

    Entries without names are those of the parameters, `*args` one of them, if there are as many; where there
    are as many inputs too, if what stands for `*args` has an entry for each that is like it.
    """
    parameters = _parameters(fn)
    if parameters is None:
        return dims
    plain = [p.name for p in parameters if p.kind in _BY_PLACE]
    star = _name_of(parameters, inspect.Parameter.VAR_POSITIONAL)
    rest = _name_of(parameters, inspect.Parameter.VAR_KEYWORD)
    many = len(args) - len(plain) if star is not None else 0
    if isinstance(dims, (tuple, list)) and many > 0:
        held = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        if len(plain) < len(dims) <= len(held) and (
            len(dims) != len(args) + named or _says_each(dims[len(plain)], args[len(plain) :])
        ):
            dims = dict(zip(held, dims))
    if not isinstance(dims, dict):
        return dims
    found: dict[Any, Any] = {}
    for name, said in dims.items():
        if name in (star, rest) and not said:
            continue
        if name == star and many > 0:
            if not isinstance(said, (tuple, list)) or len(said) != many:
                raise ValueError(
                    f"dynamic_shapes[{star!r}]: expected {many} entries in a tuple, got {said!r}"
                )
            found.update({f"{star}[{k}]": one for k, one in enumerate(said)})
        elif name == rest and isinstance(said, dict):
            found.update(said)
        else:
            found[name] = said
    return found


def _says_each(said: Any, args: Sequence[Any]) -> bool:
    """Whether something is said of each of these arguments, and not of one's dims or items."""
    if not isinstance(said, (tuple, list)) or len(said) != len(args):
        return False
    kinds = [(tuple, list) if isinstance(x, (tuple, list)) else (dict, tuple, list) for x in args]
    return all(one is None or isinstance(one, kind) for one, kind in zip(said, kinds))


def specs_for(in_tree: Tree, parameters: list[str], dims: Any) -> list[dict[int, Any]]:
    """What is said of the dims of each tensor among the arguments: {dim: Dim, size or None}."""
    items = in_tree.items
    keys = list(items[1].keys)
    if isinstance(dims, (tuple, list)) and len(dims) == len(items[0].items) and not keys:
        return [s for item, d in zip(items[0].items, dims) for s in specs_of(item, d, [])]
    whole = Tree("dict", (*items[0].items, *items[1].items), (*parameters, *keys))
    if isinstance(dims, dict) and len(whole.items) == 1 and whole.items[0].kind == "leaf":
        if all(isinstance(k, int) for k in dims):
            dims = {whole.keys[0]: dims}
    return specs_of(whole, dims, [])
