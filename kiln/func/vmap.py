"""`vmap`: a function of one sample as a function of a batch of them, computed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from kiln import _core, ops
from kiln.func.batched import Batched, everywhere
from kiln.func.levels import RANDOMNESS, Level, callable_like, mapping
from kiln.func.tree import flatten, spread

Function = TypeVar("Function", bound=Callable[..., Any])


def vmap(
    func: Function,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Function:
    """The function that does `func`, written for one sample, for a whole batch at once.

    `in_dims` says where the batch is in each argument (an int for all, or a tree like the arguments', None
    for what all samples share), `out_dims` where it goes in each result. Ops run once, for all samples: there
    is no loop. Arguments may be trees (tuples, lists, dicts); maps may be nested and combined with `grad`.
    `chunk_size` does that many samples at a time.

    Random numbers are an error unless `randomness` is "same" or "different" for the samples. RuntimeError for
    what needs the value of a sample: item(), a branch, a shape that depends on data.

    >>> import kiln
    >>> dot = lambda a, b: (a * b).sum()
    >>> kiln.vmap(dot, in_dims=(0, None))(kiln.arange(6).reshape(3, 2), kiln.tensor([1, 2]))
    tensor([ 2,  8, 14])
    """
    if randomness not in RANDOMNESS:
        raise RuntimeError(
            f"vmap: Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}"
        )
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    name = getattr(func, "__name__", repr(func))

    def mapped(*args: Any, **kwargs: Any) -> Any:
        call = _Call(func, name, in_dims, out_dims, randomness)
        given = _taken(call, args, kwargs)
        if chunk_size is None or given.size <= chunk_size:
            return _mapped(call, given)
        return _in_chunks(call, given, chunk_size)

    return cast(Function, callable_like(func, mapped))


class _Call(NamedTuple):
    """What vmap was asked for."""

    func: Callable[..., Any]
    name: str
    in_dims: Any
    out_dims: Any
    randomness: str


class _Given(NamedTuple):
    """The leaves of the arguments, what builds (args, kwargs) of them, where the batch is, its size."""

    leaves: list[Any]
    build: Callable[[list[Any]], Any]
    dims: list[int | None]
    size: int


def _taken(asked: _Call, args: Any, kwargs: Any) -> _Given:
    in_dims = asked.in_dims
    call = f"vmap({asked.name}, in_dims={in_dims}, ...)(<inputs>)"
    if not isinstance(in_dims, (int, tuple, list)) or isinstance(in_dims, bool):
        raise ValueError(
            f"{call}: expected `in_dims` to be int or a (potentially nested) tuple matching the structure of "
            f"inputs, got: {type(in_dims)}."
        )
    if not args and not kwargs:
        raise ValueError(
            f"{call}: got no inputs. Maybe you forgot to add inputs, or you are trying to vmap over a "
            "function with no inputs. The latter is unsupported."
        )
    dims = spread(tuple(in_dims) if isinstance(in_dims, list) else in_dims, args)
    if dims is None:
        raise ValueError(f"{call}: in_dims is not compatible with the structure of `inputs`.")
    leaves, build = flatten((args, kwargs))
    dims = [*dims, *[0] * (len(leaves) - len(dims))]  # keywords are mapped along dim 0
    dims = [_checked(call, dim, x) for dim, x in zip(dims, leaves)]
    sizes = [x.shape[dim] for dim, x in zip(dims, leaves) if dim is not None]
    if not sizes:
        raise ValueError(f"{call}: at least one input must be mapped: all in_dims are None")
    if len(set(sizes)) > 1:
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return _Given(leaves, build, dims, sizes[0])


def _checked(call: str, dim: Any, x: Any) -> int | None:
    """Where the batch is in an argument, counted from the front."""
    if dim is None:
        return None
    if not isinstance(dim, int):
        raise ValueError(
            f"{call}: Got in_dim={dim} for an input but in_dim must be either an integer dimension or None."
        )
    if not isinstance(x, _core.Tensor):
        raise ValueError(
            f"{call}: Got in_dim={dim} for an input but the input is of type {type(x)}. We cannot vmap over "
            "non-Tensor arguments, please use None as the respective in_dim"
        )
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(
            f"{call}: Got in_dim={dim} for some input, but that input is a Tensor of dimensionality {x.ndim} "
            f"so expected in_dim to satisfy -{x.ndim} <= in_dim < {x.ndim}."
        )
    return dim % x.ndim


def _mapped(call: _Call, given: _Given) -> Any:
    with mapping(given.size, call.randomness) as level:
        samples = [
            x if dim is None else Batched(_front(x, dim), level) for x, dim in zip(given.leaves, given.dims)
        ]
        args, kwargs = given.build(samples)
        result = call.func(*args, **kwargs)
        found, whole = flatten(result)
        places = _places(call, result)
        return whole([_taken_out(call.name, y, dim, level) for y, dim in zip(found, places)])


def _front(x: Any, dim: int) -> Any:
    return x if dim == 0 else ops.movedim(x, dim, 0)


def _places(call: _Call, result: Any) -> list[Any]:
    """Where the batch goes in each result."""
    out_dims = call.out_dims
    places = spread(tuple(out_dims) if isinstance(out_dims, list) else out_dims, result)
    if places is None and isinstance(out_dims, tuple) and len(out_dims) == 1:
        places = spread(out_dims[0], result)
    if places is None:
        raise ValueError(
            f"vmap({call.name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the "
            "structure of `outputs`."
        )
    return places


def _taken_out(name: str, y: Any, dim: int | None, level: Level) -> Any:
    """A result for the whole batch."""
    if dim is None:
        if type(y) is Batched and y.level is level:
            raise ValueError(
                f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None"
            )
        return y
    if not isinstance(y, _core.Tensor):
        raise ValueError(
            f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(y)}. Did you mean to set "
            "out_dims= to None for output?"
        )
    whole = everywhere(y, level)
    return whole if dim == 0 else ops.movedim(whole, 0, dim)


def _in_chunks(call: _Call, given: _Given, chunk: int) -> Any:
    """Some samples at a time, joined."""
    done = []
    for start in range(0, given.size, chunk):
        count = min(chunk, given.size - start)
        some = [x if d is None else ops.narrow(x, d, start, count) for x, d in zip(given.leaves, given.dims)]
        done.append(_mapped(call, given._replace(leaves=some, size=count)))
    whole = flatten(done[0])[1]
    places = _places(call, done[0])
    columns = zip(*(flatten(result)[0] for result in done))
    return whole([ys[0] if d is None else ops.cat(list(ys), d) for d, ys in zip(places, columns)])
