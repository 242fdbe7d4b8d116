"""Derivatives of functions: grad, vjp, jvp and what is made of them.

A function is differentiated by running it on other tensors of the same memory and asking the engine for
gradients. What it is nested in decides what those tensors are:

    inside vmap          the whole batch, what the samples share repeated for each: samples do not mix, so
                         the gradient of each is that of the sum
    x requires grad      a view of x, so that the result can be differentiated outside
    x does not           a leaf of its own; what depends on nothing outside comes back without history
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kiln import _core, ops
from kiln.autograd.grad_mode import enable_grad
from kiln.func.backward import gradients_of_batch
from kiln.func.levels import Level, callable_like, levels
from kiln.func.tree import flatten, map_leaves
from kiln.func.wholes import batch_first, sample, split_batch, whole, whole_of


class _UnderWay(_local):
    def __init__(self) -> None:
        self.depth = 0
        self.ends: set[Any] = set()  # where gradients of the leaves end that transforms under way have made


_under_way = _UnderWay()


def is_differentiating() -> bool:
    """Whether a function runs on this thread to be differentiated."""
    return _under_way.depth > 0


class Tracked:
    """Tensors that a function is differentiated at, and what the core knows them by."""

    def __init__(self, name: str, leaves: list[Any]) -> None:
        self.levels = list(levels())
        self.recording = _core.grad_enabled()
        self.nested = _under_way.depth > 0
        for x in leaves:
            if not isinstance(x, _core.Tensor):
                raise ValueError(
                    f"{name}: Thing passed to transform API must be Tensor, got {type(x)}; pass what is not "
                    "differentiated outside argnums, or as a tensor"
                )
            if not x.dtype.is_floating_point:
                raise RuntimeError(
                    f"{name}: only Tensors of floating point dtype can require gradients, got {x.dtype}"
                )
        if not self.nested:
            _under_way.ends = set()
        self.ends = _under_way.ends
        with enable_grad():
            self.wholes = [_own(whole(x, self.levels), self.ends) for x in leaves]
        self.connected = self.recording and (self.nested or any(x.requires_grad for x in leaves))
        self.samples = [sample(x, self.levels) for x in self.wholes]

    def reaches_out(self, y: Any) -> bool:
        """Whether a result depends on what is recorded outside: only then it keeps its history."""
        return self.recording and y.requires_grad and (self.connected or _depends_on_others(y, self.ends))

    def outside(self, y: Any) -> Any:
        """A result as the caller has it."""
        if not isinstance(y, _core.Tensor) or not y.requires_grad:
            return y
        return y if self.reaches_out(whole_of(y)) else y.detach()

    def gradients(self, outputs: list[Any], seeds: list[Any], keep: bool) -> list[Any]:
        """Of each sample's tensors the gradient, given those of the results; zeros where there is none."""
        more = [level for level in levels() if level not in self.levels]
        ys = [whole(y, self.levels) for y in outputs]
        create = self.recording and _core.grad_enabled() and any(self.reaches_out(y) for y in ys)
        create = create or (_core.grad_enabled() and any(whole_of(s).requires_grad for s in seeds))
        given = [batch_first(s, self.levels, more) for s in seeds]
        pairs = [(y, s) for y, s in zip(ys, given) if y.requires_grad]
        found: Any = [None] * len(self.wholes)
        if pairs:
            roots, firsts = [y for y, _ in pairs], [s for _, s in pairs]
            if more:
                found = gradients_of_batch(roots, self.wholes, firsts, keep or create, create)
            else:
                found = _core.run_backward(
                    tuple(roots), tuple(firsts), keep or create, create, tuple(self.wholes), False
                )
        return [self._as_sample(g, x, more) for g, x in zip(found, self.wholes)]

    def _as_sample(self, gradient: Any, x: Any, more: list[Level]) -> Any:
        if gradient is None:
            return sample(ops.zeros_like(x.detach()), self.levels)
        return split_batch(gradient, self.levels, more)


def _own(x: Any, ends: set[Any]) -> Any:
    """Another tensor of the same memory: of one that is recorded a view, else a leaf, noted in `ends`."""
    if x.requires_grad:
        return ops.view_as(x, x)
    leaf = x.detach().requires_grad_()
    node: Any = ops.view_as(leaf, leaf).grad_fn
    ends.add(node.next_functions[0][0])
    return leaf


def _depends_on_others(y: Any, ends: set[Any]) -> bool:
    """Whether a gradient of y, which is recorded, goes to a leaf whose end is not known."""
    stack: list[Any] = [y.grad_fn or ops.view_as(y, y).grad_fn]
    seen = set(stack)
    while stack:
        node = stack.pop()
        following = [f for f, _ in node.next_functions if f is not None]
        if not following and node.name() == "AccumulateGrad" and node not in ends:
            return True
        stack += [f for f in following if f not in seen]
        seen.update(following)
    return False


@contextmanager
def differentiating() -> Iterator[None]:
    """A function runs to be differentiated: gradients are recorded, whatever the caller's mode."""
    _under_way.depth += 1
    _core.hold_turns(1)  # of kiln.batching.map
    try:
        _core.run_pending()  # what is batched has one history: that of others' calls is not to be among it
        with enable_grad():
            yield
        _core.run_pending()
    finally:
        _core.hold_turns(-1)
        _under_way.depth -= 1


def _chosen(args: tuple[Any, ...], argnums: Any) -> Any:
    """The arguments differentiated: one, or a tuple of them."""
    several = isinstance(argnums, (tuple, list))
    numbers = tuple(argnums) if several else (argnums,)
    if not numbers or not all(isinstance(k, int) for k in numbers):
        raise RuntimeError(f"argnums must be an int or a non-empty Tuple of ints, got {argnums!r}")
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise RuntimeError(f"Got argnum={k}, but only {len(args)} positional inputs")
    if len({k % len(args) for k in numbers}) != len(numbers):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return tuple(args[k] for k in numbers) if several else args[argnums]


def _replaced(args: tuple[Any, ...], argnums: Any, value: Any) -> tuple[Any, ...]:
    """The arguments with those of argnums replaced."""
    new = list(args)
    for k, x in zip(argnums, value) if isinstance(argnums, (tuple, list)) else ((argnums, value),):
        new[k] = x
    return tuple(new)


def _split(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """The output of a function, and what it gives besides."""
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(
            f"{name}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    return result[0], result[1]


def grad_and_value(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives (gradient, value) of `func`, a function with one number as its result; with
    `has_aux`, (gradient, (value, aux)). See `grad`.

    >>> import kiln
    >>> kiln.func.grad_and_value(lambda x: x**2)(kiln.tensor(3.0))
    (tensor(6.), tensor(9.))
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        leaves, build = flatten(_chosen(args, argnums))
        at = Tracked("grad", leaves)
        with differentiating():
            result = func(*_replaced(args, argnums, build(at.samples)), **kwargs)
        value, aux = _split("grad_and_value(f)(*args)", result, has_aux)
        _check_scalar(value)
        found = build(at.gradients([value], [ops.ones_like(value.detach())], False))
        value = at.outside(value)
        return found, (value, map_leaves(at.outside, aux)) if has_aux else value

    return callable_like(func, made)


def grad(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of `func`, a function with one number as its result.

    `argnums` says with respect to which argument, an int or a tuple of ints (then a tuple comes back); an
    argument may be a tree of tensors, and so is its gradient. With `has_aux`, `func` gives (output, aux), and
    the result is (gradient, aux). Nothing has to require grad, and no `.grad` changes; where an argument or
    something `func` reads does require grad, the result can be differentiated with respect to it. Gradients
    of gradients and of mapped functions, and maps of gradients, are made by nesting.

    RuntimeError if the output is not a tensor of no dims or an argument is not of floats, ValueError for an
    argument that is no tensor.

    >>> import kiln
    >>> cube = kiln.func.grad(lambda x: x**3)
    >>> cube(kiln.tensor(2.0)), kiln.func.grad(cube)(kiln.tensor(2.0))
    (tensor(12.), tensor(12.))
    >>> kiln.vmap(cube)(kiln.tensor([1.0, 2.0]))
    tensor([ 3., 12.])
    """
    both = grad_and_value(func, argnums, has_aux)

    def made(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return callable_like(func, made)


def _check_scalar(value: Any) -> None:
    what = "grad_and_value(f)(*args): Expected f(*args) to return a "
    if not isinstance(value, _core.Tensor):
        raise RuntimeError(f"{what}scalar tensor, got {type(value)}")
    if value.ndim:
        raise RuntimeError(
            f"{what}scalar Tensor, got tensor with {value.ndim} dims. Maybe you wanted to use the vjp or "
            "jacrev APIs instead?"
        )


def _outputs(name: str, result: Any) -> tuple[list[Any], Any]:
    """The tensors a function gave, and what builds its result of others."""
    leaves, build = flatten(result)
    if result is None or not leaves:
        raise RuntimeError(
            f"{name}: Expected f to be a function that has non-empty output (got output = {result})"
        )
    for y in leaves:
        if not isinstance(y, _core.Tensor):
            raise RuntimeError(
                f"{name}: expected f(*primals) to return only tensors, got unsupported type {type(y)}"
            )
    return leaves, build


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The output of func(*primals), and the function that gives the gradients of the primals, a tuple, for a
    gradient of the output (a tree like it); with `has_aux`, for a func that gives (output, aux), aux as
    third.

    The function may be called several times, and mapped: kiln.vmap(vjp_fn)(batch of gradients) is one pass.

    >>> import kiln
    >>> y, vjp_fn = kiln.func.vjp(lambda a, b: a * b, kiln.tensor(2.0), kiln.tensor(3.0))
    >>> y, vjp_fn(kiln.tensor(10.0))
    (tensor(6.), (tensor(30.), tensor(20.)))
    """
    leaves, build = flatten(primals)
    at = Tracked("vjp", leaves)
    with differentiating():
        result = func(*build(at.samples))
    output, aux = _split("vjp(f, *primals)", result, has_aux)
    ys, whole_output = _outputs("vjp(f, *primals)", output)

    def vjp_fn(cotangents: Any, retain_graph: bool = True) -> Any:
        seeds = flatten(cotangents)[0]
        if len(seeds) != len(ys) or any(tuple(s.shape) != tuple(y.shape) for s, y in zip(seeds, ys)):
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of outputs to "
                f"the function, with tensors of shapes {[tuple(y.shape) for y in ys]}, got "
                f"{[tuple(s.shape) for s in seeds]}"
            )
        return build(at.gradients(ys, seeds, retain_graph))

    shown = whole_output([at.outside(y) for y in ys])
    return (shown, vjp_fn, map_leaves(at.outside, aux)) if has_aux else (shown, vjp_fn)


class _Linear:
    """The derivative of a function at a point, as a function of tangents: the derivative of its vjp, which is
    linear, in the gradient that goes into it.
    """

    def __init__(self, at: Tracked, ys: list[Any]) -> None:
        self.at, self.ys = at, ys
        self.reaching = any(at.reaches_out(whole_of(y)) for y in ys)
        with enable_grad():
            wholes = [whole(y, at.levels) for y in ys]
            self.seeds = [_own(ops.zeros_like(y.detach()), at.ends) for y in wholes]
            pairs = [(y, s) for y, s in zip(wholes, self.seeds) if y.requires_grad]
            found: Any = [None] * len(at.wholes)
            if pairs:
                roots, seeds = tuple(y for y, _ in pairs), tuple(s for _, s in pairs)
                found = _core.run_backward(roots, seeds, True, True, tuple(at.wholes), False)
            self.found = found

    def independent(self) -> bool:
        """Whether some result has no derivative at all."""
        return not all(y.requires_grad for y in self.ys)

    def __call__(self, tangents: list[Any]) -> list[Any]:
        inner = Tracked.__new__(Tracked)
        inner.levels, inner.wholes = self.at.levels, self.seeds
        inner.recording, inner.connected, inner.ends = self.at.recording, self.reaching, self.at.ends
        pairs = [(g, t) for g, t in zip(self.found, tangents) if g is not None and g.requires_grad]
        gs = [sample(g, inner.levels) for g, _ in pairs]
        return inner.gradients(gs, [t for _, t in pairs], True)


def _tangents(name: str, primals: Any, tangents: Any) -> list[Any]:
    """Tangents that are built like the primals."""
    xs, ts = flatten(primals)[0], flatten(tangents)[0]
    if len(xs) != len(ts):
        raise RuntimeError(
            f"{name}: Expected primals and tangents to have the same python structure. For example, if "
            "primals is a tuple of 3 tensors, tangents also must be."
        )
    for x, t in zip(xs, ts):
        if tuple(x.shape) != tuple(t.shape):
            raise RuntimeError(
                f"{name}: Trying to set a forward gradient that has a different size than that of the "
                f"original Tensor, this is not supported. Tensor is of size {list(x.shape)} while the given "
                f"forward gradient is of size {list(t.shape)}."
            )
    return ts


def jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    """The output of func(*primals), and how it changes along `tangents` (a tuple like primals); with
    `has_aux`, for a func that gives (output, aux), aux as third.

    It is computed by differentiating the function's vjp: there is no second set of derivatives. With `strict`
    RuntimeError where an output does not depend on the primals; else its change is zeros.

    >>> import kiln
    >>> kiln.func.jvp(lambda x: x**2, (kiln.tensor(3.0),), (kiln.tensor(1.0),))
    (tensor(9.), tensor(6.))
    """
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple):
            raise RuntimeError(
                f"jvp(f, primals, tangents): Expected {what} to be a tuple. E.g. it should be valid to call "
                f"f(*{what})."
            )
    ts = _tangents("jvp(f, primals, tangents)", primals, tangents)
    output, linear, aux = _linearized("jvp(f, primals, tangents)", func, primals, has_aux)
    if strict and linear.linear.independent():
        raise RuntimeError(
            "jvp(f, primals, tangents, strict=True): The output of f is independent of the inputs. This is "
            "not allowed with strict=True."
        )
    along = linear.of(ts)
    return (output, along, aux) if has_aux else (output, along)


class _Linearized:
    """The derivative at a point, giving trees like the output."""

    def __init__(self, linear: _Linear, build: Callable[[list[Any]], Any]) -> None:
        self.linear, self.build = linear, build

    def of(self, tangents: list[Any]) -> Any:
        """The change of the output along tangents."""
        return self.build(self.linear(tangents))


def _linearized(
    name: str, func: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool
) -> tuple[Any, _Linearized, Any]:
    """The output of a function, its derivative, and what it gives besides."""
    leaves, build = flatten(primals)
    at = Tracked(name, leaves)
    with differentiating():
        result = func(*build(at.samples))
        output, aux = _split(name, result, has_aux)
        ys, whole_output = _outputs(name, output)
        linear = _Linear(at, ys)
    return (
        whole_output([at.outside(y) for y in ys]),
        _Linearized(linear, whole_output),
        map_leaves(at.outside, aux),
    )


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The output of func(*primals), and the function that gives its change along tangents, for any number of
    calls.

    >>> import kiln
    >>> y, along = kiln.func.linearize(lambda x: x**2, kiln.tensor(3.0))
    >>> along(kiln.tensor(1.0)), along(kiln.tensor(2.0))
    (tensor(6.), tensor(12.))
    """
    output, linear, _ = _linearized("linearize", func, primals, False)
    return output, lambda *tangents: linear.of(_tangents("linearize", primals, tangents))
