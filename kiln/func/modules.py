"""Modules as functions of their parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kiln import _core, ops

Tensors = Mapping[str, Any]


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Tensors | Sequence[Tensors],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """What the module computes of args and kwargs with other parameters and buffers: those of a dict by name,
    or of a sequence of dicts; the rest stay its own. The module is as before afterwards.

    With `tie_weights` a tensor the module has under several names is replaced under all. With `strict`
    RuntimeError unless every name is given and the module has all that are. ValueError for a name given
    twice, AttributeError for one in a module there is not, TypeError for what is no tensor.

    >>> import kiln
    >>> layer = kiln.nn.Linear(2, 1)
    >>> given = {"weight": kiln.ones(1, 2), "bias": kiln.zeros(1)}
    >>> kiln.func.functional_call(layer, given, kiln.tensor([1.0, 2.0]))
    tensor([3.])
    """
    given = _merged(parameter_and_buffer_dicts)
    if strict:
        _check_complete(module, given)
    if tie_weights:
        given = _tied(module, given)
    places = {name: _place(module, name, value) for name, value in given.items()}
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _exchanged(places, given):
        return module(*args, **(kwargs or {}))


def _merged(dicts: Any) -> dict[str, Any]:
    """One dict of several."""
    if isinstance(dicts, Mapping):
        return dict(dicts)
    if not isinstance(dicts, Sequence) or not all(isinstance(d, Mapping) for d in dicts):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(dicts)}"
        )
    names = [name for d in dicts for name in d]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(
            f"{repeated[0]} appears in multiple dictionaries; behavior of functional call is ambiguous"
        )
    return {name: value for d in dicts for name, value in d.items()}


def _owned(module: Any) -> dict[str, Any]:
    """Every parameter and buffer by name, those of several names under each."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _check_complete(module: Any, given: Tensors) -> None:
    """RuntimeError unless the names given are the module's; of one tensor's names one is enough."""
    owned = _owned(module)
    known = {id(x) for name, x in owned.items() if name in given}
    unexpected = [name for name in given if name not in owned]
    missing = [name for name, x in owned.items() if name not in given and id(x) not in known]
    words = [f"Unexpected key(s): {', '.join(unexpected)}."] if unexpected else []
    words += [f"Missing key(s): {', '.join(missing)}."] if missing else []
    if words:
        raise RuntimeError(
            f"Error(s) in reparametrizing for {type(module).__name__}:\n\t" + "\n\t".join(words)
        )


def _tied(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What is given, under every name that the module has the same tensor by."""
    owned = _owned(module)
    names: dict[int, list[str]] = {}
    for name, x in owned.items():
        names.setdefault(id(x), []).append(name)
    result = dict(given)
    for name, value in given.items():
        for other in names.get(id(owned.get(name)), ()):
            if result.setdefault(other, value) is not value:
                raise ValueError(
                    f"functional_call got multiple values for keys {sorted([name, other])}, which are tied. "
                    "Consider using tie_weights=False"
                )
    return result


def _place(module: Any, name: str, value: Any) -> tuple[Any, str, str]:
    """(the module that owns it, the dict it is in, its own name) of a parameter or buffer; a name of neither
    is an attribute.
    """
    path, _, own = name.rpartition(".")
    owner = module.get_submodule(path)
    if value is not None and not isinstance(value, _core.Tensor):
        raise TypeError(f"{value!r} is not an instance of kiln.Tensor: it is given for '{name}'")
    return owner, next((k for k in ("_parameters", "_buffers") if own in getattr(owner, k)), "__dict__"), own


_ABSENT: Any = object()


@contextmanager
def _exchanged(places: dict[str, tuple[Any, str, str]], given: dict[str, Any]) -> Iterator[None]:
    """Other tensors in a module's places, while it runs. What it assigns to a buffer meanwhile is lost."""
    before = [(o, kind, own, getattr(o, kind).get(own, _ABSENT)) for o, kind, own in places.values()]
    try:
        for name, (owner, kind, own) in places.items():
            getattr(owner, kind)[own] = owner.__dict__[own] = given[name]
        yield
    finally:
        for owner, kind, own, value in before:
            if value is _ABSENT:
                del owner.__dict__[own]
            else:
                getattr(owner, kind)[own] = owner.__dict__[own] = value


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters, and the buffers, of models built alike, each stacked along a new dim 0, by name.

    Map `functional_call` over them to run all models at once. The stacked parameters are leaves that require
    grad where the models' do. RuntimeError for no models, for models of different classes or modes.

    >>> import kiln
    >>> models = [kiln.nn.Linear(3, 1) for _ in range(4)]
    >>> params, buffers = kiln.func.stack_module_state(models)
    >>> call = lambda p, b, x: kiln.func.functional_call(models[0], (p, b), (x,))
    >>> kiln.vmap(call, (0, 0, None))(params, buffers, kiln.ones(2, 3)).shape
    kiln.Size([4, 2, 1])
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({model.training for model in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if len({type(model) for model in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    params = [dict(model.named_parameters()) for model in models]
    buffers = [dict(model.named_buffers()) for model in models]
    return (
        {name: _stacked([p[name] for p in params]) for name in params[0]},
        {name: _stacked([b[name] for b in buffers]) for name in buffers[0]},
    )


def _stacked(tensors: list[Any]) -> Any:
    """Tensors stacked, as a leaf."""
    if len({x.requires_grad for x in tensors}) > 1:
        raise RuntimeError(
            "Expected all parameters to have the same .requires_grad: some of one name do and some do not"
        )
    return ops.stack([x.detach() for x in tensors]).requires_grad_(tensors[0].requires_grad)
