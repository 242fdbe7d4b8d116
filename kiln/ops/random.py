"""Random numbers from counters: seed and position give the value, whoever computes it and in which order.

An op takes (seed, position); element i of its result is a function of (seed, position + i) alone. The public
function draws the pair from the generator, which moves on by the number of elements, at the line of the call:
by an amount that depends on op and size only (SEMANTICS.md 17).
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.ops import declare as d
from kiln.ops import philox, scalar
from kiln.ops.activations import floating, narrow
from kiln.ops.creation import chosen_dtype, full_like, iota, settle, sizes_given
from kiln.ops.declare import dtype_name, into, public, run
from kiln.ops.getitem import put
from kiln.ops.kinds import COMPUTE, FLOATS
from kiln.ops.pointwise import convert, where
from kiln.ops.record import Number, Operand, Sample, Sizes, Structure, Tensor, composite, pointwise
from kiln.ops.views import reshape


def _counters(count: int, rng: Any) -> Any:
    return rng.integers(0, 2**40, (count,))


def _drawn(np: Any, position: Any, seed: Any, dtype: str, kind: str) -> Any:
    """The reference: the body on NumPy's arithmetic (its own definition is Philox4x32-10, tested against
    vectors).
    """
    from kiln.ops import scalar_numpy

    leaves = [scalar.arg(0, "i64"), scalar.arg(1, "i64")]
    body = {"uniform": _uniform, "normal": _normal}.get(kind)
    root = (
        body(leaves[0], leaves[1], COMPUTE[dtype])
        if body
        else _below(leaves[0], leaves[1], scalar.arg(2, "i64"))
    )
    values = [np.asarray(position, "int64"), np.asarray(seed, "int64")]
    (result,) = scalar_numpy.evaluate([root], lambda leaf: values[leaf.data])
    return result.astype(d.held(dtype))


def _uniform(position: Any, seed: Any, type: str) -> Any:
    words = philox.philox(seed, position)
    return philox.uniform_f64(words[0], words[1]) if type == "f64" else philox.uniform_f32(words[0])


def _normal(position: Any, seed: Any, type: str) -> Any:
    words = philox.philox(seed, position)
    return philox.normal_f64(words)[0] if type == "f64" else philox.normal_f32(words[0], words[1])[0]


def _below(position: Any, seed: Any, count: Any) -> Any:
    """The high product of 63 random bits and count, as a remainder: 0 <= it < count."""
    words = philox.philox(seed, position)
    wide = (scalar.convert(words[0], "u64") << 32) | scalar.convert(words[1], "u64")
    limit = scalar.convert(count, "u64")
    return scalar.convert(scalar.select(limit.eq(0), 0, scalar.Scalar("rem", (wide, limit), "u64")), "i64")


_RANDOM: dict[str, Any] = {"differentiable": False, "public": False}


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, t))],
    failures=d.not_an_array("draw_uniform", 2),
    reference=d.reference(lambda np, x, seed, t: _drawn(np, x, seed, t, "uniform")),
    **_RANDOM,
)
def draw_uniform(position: Operand, seed: Operand, dtype: Structure) -> Any:
    """A float in [0, 1) for every int64 position, broadcast.

    >>> bool((kiln.rand(3) < 1).all())
    True
    """
    return _uniform(position, seed, COMPUTE[dtype])


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, t))],
    failures=d.not_an_array("draw_normal", 2),
    reference=d.reference(lambda np, x, seed, t: _drawn(np, x, seed, t, "normal")),
    **_RANDOM,
)
def draw_normal(position: Operand, seed: Operand, dtype: Structure) -> Any:
    """A normally distributed float for every int64 position, broadcast.

    >>> kiln.randn(3).shape
    kiln.Size([3])
    """
    return _normal(position, seed, COMPUTE[dtype])


@pointwise(
    "index",
    samples=lambda rng, t: [Sample((_counters(50, rng), 7, 10, "int64"))],
    dtypes="integral",
    reference=d.reference(lambda np, x, seed, n, t: _drawn_below(np, x, seed, n)),
    failures=d.not_an_array("draw_below", 3),
    **_RANDOM,
)
def draw_below(position: Operand, seed: Operand, count: Operand, dtype: Structure) -> Any:
    """An integer in [0, count) for every int64 position, broadcast; 0 if count is 0.

    >>> kiln.randint(0, 1, (2,))
    tensor([0, 0])
    """
    return _below(position, seed, count)


def _drawn_below(np: Any, position: Any, seed: Any, count: int) -> Any:
    from kiln.ops import scalar_numpy

    leaves = [scalar.arg(k, "i64") for k in range(3)]
    values = [np.asarray(v, "int64") for v in (position, seed, count)]
    return scalar_numpy.evaluate([_below(*leaves)], lambda leaf: values[leaf.data])[0]


def _places(position: Any, sizes: tuple[Any, ...]) -> Any:
    """position, position + 1, ... for the elements of `sizes` in order."""
    count = d.numel(sizes)
    return position + position.graph.add(iota, (), ((count,), 0))


def _shaped(flat: Any, sizes: tuple[Any, ...]) -> Any:
    return flat if len(sizes) == 1 else reshape(flat, sizes)


def _draws(op: Any, *extra: Any) -> Any:
    """Samples and reference of a composite over positions 0, 1, ..."""

    def of_numpy(np: Any, *args: Any) -> Any:
        *numbers, position, seed, sizes, dtype = args
        flat = op.reference(
            position + np.arange(np.prod(sizes, dtype=int)),
            seed,
            *((numbers[1] - numbers[0],) if op is draw_below else ()),
            dtype,
        )
        if op is draw_below:
            return (flat + numbers[0]).reshape(sizes).astype(d.held(dtype))
        low, span = np.asarray(numbers, flat.dtype)
        return (flat * span + low).reshape(sizes)

    return {"samples": lambda rng, t: [Sample((*extra, 100, 7, (3, 5), t)), Sample((*extra, 0, 7, (), t))],
            "reference": d.reference(of_numpy), "failures": d.not_an_array("", 6), **_RANDOM}  # fmt: skip


@composite(**_draws(draw_uniform, 0.0, 1.0))
def uniform_values(
    low: Number, span: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """low + span * u for uniform u in [0, 1).

    >>> bool((kiln.zeros(3).uniform_(2, 3) >= 2).all())
    True
    """
    wide = "float64" if dtype == "float64" else "float32"
    return _shaped(narrow(draw_uniform(_places(position, sizes), seed, wide) * span + low, dtype), sizes)


@composite(**_draws(draw_normal, 0.0, 1.0))
def normal_values(
    mean: Number, std: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """mean + std * z for standard normal z.

    >>> kiln.zeros(3).normal_(0, 2).shape
    kiln.Size([3])
    """
    wide = "float64" if dtype == "float64" else "float32"
    return _shaped(narrow(draw_normal(_places(position, sizes), seed, wide) * std + mean, dtype), sizes)


@composite(**{**_draws(draw_below, 0, 10), "dtypes": "numeric"})
def integer_values(
    low: Number, high: Number, position: Number, seed: Number, sizes: Sizes, dtype: Structure
) -> Any:
    """low + a random integer below high - low.

    >>> kiln.randint(5, 6, (2,))
    tensor([5, 5])
    """
    values = draw_below(_places(position, sizes), seed, high - low, "int64") + low
    return _shaped(narrow(values, dtype), sizes)


def _bernoulli(np: Any, probability: Any, position: Any, seed: Any) -> Any:
    u = draw_uniform.reference(position + np.arange(probability.size), seed, "float32")  # type: ignore[misc]
    return (u.reshape(probability.shape) < probability).astype(probability.dtype)


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t, 0, 1), 100, 7))],
    reference=d.reference(_bernoulli),
    failures=d.not_an_array("bernoulli", 3),
    **_RANDOM,
)
def bernoulli_values(input: Tensor, position: Number, seed: Number) -> Any:
    """1 with the probability each element of `input` states, else 0.

    >>> kiln.bernoulli(kiln.ones(2))
    tensor([1., 1.])
    """
    x = floating(input, "bernoulli_cpu")
    u = _shaped(draw_uniform(_places(position, tuple(x.shape)), seed, "float32"), tuple(x.shape))
    return convert(u < x, input.dtype)


def _dropped(np: Any, x: Any, p: float, position: Any, seed: Any) -> Any:
    u = draw_uniform.reference(position + np.arange(x.size), seed, "float32").reshape(x.shape)  # type: ignore[misc]
    return (x * np.where(u >= np.float32(p), 1 / (1 - p), 0)).astype(x.dtype)


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t), 0.25, 100, 7))],
    reference=d.reference(_dropped),
    public=False,
    failures=d.not_an_array("dropout", 4),
)
def dropout_values(input: Tensor, p: Number, position: Number, seed: Number) -> Any:
    """`input` with each element zero with probability p, the others divided by 1 - p.

    >>> kiln.nn.functional.dropout(kiln.ones(2), 0.0)
    tensor([1., 1.])
    """
    x = floating(input, "dropout")
    u = _shaped(draw_uniform(_places(position, tuple(x.shape)), seed, "float32"), tuple(x.shape))
    scale = where(
        p < 1, 1 / (1 - p), 0
    )  # a number; with p = 1 nothing is kept, and nothing is scaled by infinity
    return narrow(where(u >= p, x * scale, 0), input.dtype)


# Public functions


def _draw(sizes: Any) -> tuple[Any, Any]:
    """(position, seed) for an array of some sizes; the generator moves on by its number of elements."""
    seed, position = _core.next_random(d.numel(sizes))
    return position, seed


def _float(dtype: Any, default: Any, op: str) -> str:
    name = chosen_dtype(dtype, default)
    if name not in FLOATS:
        raise NotImplementedError(f"\"{op}\" not implemented for '{d.type_name(name)}'")
    return name


def _random(op: str, values: Any, like: bool, doc: str) -> Any:
    """rand, randn, rand_like or randn_like: `values` with location 0 and scale 1."""

    def make(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
        sizes = sizes_given(size, op)
        result = run(values, 0.0, 1.0, *_draw(sizes), sizes, _float(dtype, None, op))
        return settle(result, requires_grad, device, op)

    def make_like(input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
        sizes = tuple(input.shape)
        result = run(values, 0.0, 1.0, *_draw(sizes), sizes, _float(dtype, input.dtype, op))
        return settle(result, requires_grad, device, op)

    function: Any = make_like if like else make
    function.__name__, function.__doc__ = op, doc
    return public(op, method=False)(function)


_RAND = """Random floats, {0}, {1}. NotImplementedError for a dtype that is not of floats.

    >>> kiln.{2}({3}).shape
    kiln.Size([3])
    """
rand = _random(
    "rand", uniform_values, False, _RAND.format("uniform in [0, 1)", "of the given sizes", "rand", "3")
)
randn = _random(
    "randn", normal_values, False, _RAND.format("standard normal", "of the given sizes", "randn", "3")
)
rand_like = _random(
    "rand_like",
    uniform_values,
    True,
    _RAND.format("uniform in [0, 1)", "as input", "rand_like", "kiln.ones(3)"),
)
randn_like = _random(
    "randn_like",
    normal_values,
    True,
    _RAND.format("standard normal", "as input", "randn_like", "kiln.ones(3)"),
)


@public("randint", method=False)
def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """Random integers in [low, high), int64: `randint(high, size)` or `randint(low, high, size)`.

    RuntimeError unless low < high.

    >>> kiln.randint(1, (2,))
    tensor([0, 0])
    """
    if size is None:
        low, high, size = 0, low, high
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    sizes = sizes_given((size,), "randint")
    result = run(integer_values, low, high, *_draw(sizes), sizes, chosen_dtype(dtype, "int64"))
    return settle(result, requires_grad, device, "randint")


@public("normal", method=False)
def normal(
    mean: float, std: float, size: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """Normally distributed floats of the given sizes. RuntimeError for a negative std.

    >>> kiln.normal(0.0, 1.0, (2,)).shape
    kiln.Size([2])
    """
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    sizes = sizes_given((size,), "normal")
    return settle(
        run(normal_values, mean, std, *_draw(sizes), sizes, _float(dtype, None, "normal")),
        requires_grad,
        device,
        "normal",
    )


@public("bernoulli")
def bernoulli(input: Any, p: Any = None, *, out: Any = None) -> Any:
    """1 with the probability each element of `input` states (or with probability `p`), else 0; of its shape
    and dtype.

    >>> kiln.bernoulli(kiln.zeros(2))
    tensor([0., 0.])
    """
    source = input if p is None else _probabilities(input, p)
    return bernoulli_values(source, *_draw(input.shape), **into(out))


def _probabilities(input: Any, value: Any) -> Any:
    """An array of a probability, of input's shape."""
    if not 0 <= value <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={value}")
    return full_like(input, value)


def _filled(input: Any, values: Any, *args: Any) -> Any:
    """values(*args) written into a tensor; recorded gradients of what was there end here."""
    if _core.grad_enabled() and input.requires_grad:
        return put(input, values(*args))
    return values(*args, out=input)


def uniform_(input: Any, a: float = 0, b: float = 1) -> Any:
    """Fills a tensor with uniform floats in [a, b); returns it. RuntimeError if a > b."""
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    sizes = tuple(input.shape)
    dtype = _float(None, input.dtype, "uniform_")
    return _filled(input, uniform_values, float(a), float(b) - float(a), *_draw(sizes), sizes, dtype)


def normal_(input: Any, mean: float = 0, std: float = 1) -> Any:
    """Fills a tensor with normally distributed floats; returns it. RuntimeError for a negative std."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    sizes = tuple(input.shape)
    dtype = _float(None, input.dtype, "normal_")
    return _filled(input, normal_values, float(mean), float(std), *_draw(sizes), sizes, dtype)


def random_(input: Any, low: int, high: int | None = None) -> Any:
    """Fills a tensor with integers in [low, high), or [0, low); returns it."""
    low, high = (0, low) if high is None else (low, high)
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    sizes = tuple(input.shape)
    return _filled(input, integer_values, low, high, *_draw(sizes), sizes, dtype_name(input.dtype))


def bernoulli_(input: Any, p: float = 0.5) -> Any:
    """Fills a tensor with 1 with probability `p`, else 0; returns it."""
    return _filled(input, bernoulli_values, _probabilities(input, p), *_draw(input.shape))


IN_PLACE = {"uniform_": uniform_, "normal_": normal_, "random_": random_, "bernoulli_": bernoulli_}


@public("dropout", method=False)
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """`input` with each element zero with probability `p` and the others divided by 1 - p; itself if not
    `training`.

    ValueError for a probability outside [0, 1].

    >>> kiln.nn.functional.dropout(kiln.ones(2), 0.9, training=False)
    tensor([1., 1.])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    return dropout_values(input, float(p), *_draw(input.shape), **into(input if inplace else None))


@public("manual_seed", method=False)
def manual_seed(seed: int) -> None:
    """Restarts the generator from `seed` (an int; taken modulo 2^64).

    >>> _ = kiln.manual_seed(0); a = kiln.rand(2)
    >>> _ = kiln.manual_seed(0); bool((a == kiln.rand(2)).all())
    True
    """
    wrapped = int(seed) % 2**64
    _core.set_random_state(wrapped - 2**64 if wrapped >= 2**63 else wrapped, 0)


@public("get_rng_state", method=False)
def get_rng_state() -> Any:
    """The generator's state for `set_rng_state`: an int64 array, (seed, position).

    >>> state = kiln.get_rng_state(); a = kiln.rand(2); kiln.set_rng_state(state)
    >>> bool((a == kiln.rand(2)).all())
    True
    """
    return _core.from_nested(_core.random_state(), "int64")


@public("set_rng_state", method=False)
def set_rng_state(new_state: Any) -> None:
    """Puts the generator back into a state `get_rng_state` gave.

    >>> kiln.set_rng_state(kiln.get_rng_state())
    """
    _core.set_random_state(*new_state.tolist())
