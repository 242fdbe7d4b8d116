"""Views and joins as calls that need no Python: what every form of call gives, beside PyTorch; several views
as one node of the graph; that nobody is asked on the way; many arrays joined.
"""

from __future__ import annotations

import random
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

from kiln import _core
from kiln.capture import service

SHAPES = ((4, 3, 5), (6,), (2, 1, 4), (1,), (0, 3), (5, 1), ())
DTYPES = ("float32", "float64", "int64", "bool", "bfloat16")


def _sizes(rng: random.Random, total: int) -> tuple[int, ...]:
    """Sizes that multiply up to `total`, or nearly; one may be -1."""
    sizes: list[int] = []
    while total > 1 and len(sizes) < 3:
        size = rng.choice([n for n in range(1, total + 1) if total % n == 0])
        sizes, total = [*sizes, size], total // size
    sizes.append(total)
    if rng.random() < 0.5:
        sizes[rng.randrange(len(sizes))] = rng.choice((-1, -1, -1, 1, 7, -2))
    return tuple(sizes)


def _call(rng: random.Random, shape: tuple[int, ...], total: int) -> str:
    """A call on x, most of the time a right one."""
    ndim = len(shape)
    dim = rng.randint(-ndim - rng.choice((0, 0, 1)), max(ndim - 1, 0) + rng.choice((0, 0, 0, 1)))
    other = rng.randint(-ndim, max(ndim - 1, 0))
    k, n = rng.randint(-2, 5), rng.randint(-1, 6)
    size = shape[dim] if -ndim <= dim < ndim else 3
    cut = rng.randint(0, size)
    order = rng.sample(range(ndim), ndim)
    sizes = _sizes(rng, total)
    wide = tuple(rng.choice((-1, s, 3)) if s != 1 else rng.choice((-1, 1, 4)) for s in shape)
    keys = ["0", "-1", f"{k}", ":", f"{k}:{n}", "::2", "None", "...", f"[{k}, 0]", "x.new_tensor([0]).long()"]
    key = ", ".join(rng.choices(keys, (4, 2, 2, 4, 4, 2, 3, 1, 1, 1), k=rng.randint(1, ndim + 1)))
    return rng.choice(
        (
            f"x.chunk({n}, {dim})", f"x.chunk({n}, dim={dim})", f"m.chunk(x, {n})",
            f"m.chunk(input=x, chunks={n}, dim={dim})", f"x.split({n}, {dim})",
            f"x.split([{cut}, {size - cut}], {dim})", f"m.split(x, {n}, dim={dim})",
            f"x.split(({cut}, {size - cut}, 0), dim={dim})", f"x.split(split_size={n}, dim={dim})",
            f"x.unbind({dim})", "x.unbind()", f"m.unbind(x, dim={dim})", "tuple(x)", "[*x]",
            f"x.narrow({dim}, {k}, {n})", f"x.narrow(dim={dim}, start={cut}, length={size - cut})",
            f"x.select({dim}, {k})", f"m.select(x, dim={dim}, index={k})", f"x[{key}]", f"x[{key}]",
            f"x[{key}]", f"x.view({', '.join(map(str, sizes))})", f"x.view({sizes})",
            f"x.reshape({sizes})", "x.reshape(-1)", f"m.reshape(x, {list(sizes)})",
            f"x.t().reshape({sizes})", f"x.view(m.zeros({total}).shape)", f"x.unsqueeze({dim})",
            f"m.unsqueeze(x, dim={dim})", "x.squeeze()", f"x.squeeze({dim})",
            f"x.transpose({dim}, {other})", f"x.transpose(dim0={dim}, dim1={other})", "x.t()", "x.mT",
            f"x.permute({order})", f"x.permute({', '.join(map(str, order))})" if ndim else "x.permute(())",
            f"x.permute({[d - ndim for d in order]})", f"x.expand({wide})", f"x.expand(2, *{wide})",
            "x.expand(-1)", f"x.flatten({dim}, {other})", "x.flatten()", "x.flatten(1)",
            f"m.flatten(x, start_dim={dim})", "x.view_as(x)", f"m.cat([x, x], {dim})",
            f"m.cat((x, x[:1], x), dim={dim})", f"m.cat([x, m.zeros(0), x], {dim})",
            f"m.cat([x, x.double()], {dim})", f"m.cat([x.mT, x.mT], {dim})",
            f"m.cat([x, x, x.unsqueeze(0)], {dim})", f"m.cat(tensors=[x], dim={dim})",
            f"m.concat([x, x], axis={dim})", f"m.stack([x, x], {dim})", f"m.stack((x, x, x), dim={dim})",
            f"m.stack([x, x[:1]], {dim})", f"m.stack([x.mT, x.mT], {dim})",
            f"m.cat([x.expand(3, *x.shape), x.unsqueeze(0)], {dim})",
            f"m.stack([x.float(), x.int()], {dim})",
        )
    )  # fmt: skip


def drawn(count: int, seed: int) -> list[tuple[str, tuple[int, ...], str]]:
    """(dtype, shape, call)."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        shape = rng.choice(SHAPES)
        found.append((rng.choice(DTYPES), shape, _call(rng, shape, int(np.prod(shape)))))
    return found


def result(m: Any, dtype: str, shape: tuple[int, ...], call: str) -> Any:
    """What a call gives (values, dtypes, shapes, strides, whether memory is shared, gradients), or the type
    of its error.
    """
    x = m.arange(int(np.prod(shape))).reshape(shape).to(getattr(m, dtype))
    grad = dtype in ("float32", "float64")
    x = x.requires_grad_() if grad else x
    try:
        given = eval(call, {"m": m, "x": x})
    except Exception as error:
        return type(error).__name__
    parts = list(given) if isinstance(given, (tuple, list)) else [given]
    seen = []
    for y in parts:
        shares = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and y.numel() > 0
        seen.append((str(y.dtype).split(".")[-1], tuple(y.shape), y.stride() if y.numel() > 1 else 0, shares))
    values = [y.detach().double().numpy().tolist() for y in parts]
    if not grad or not parts or not all(y.requires_grad for y in parts):
        return type(given).__name__, seen, values
    total = sum((y * (k + 1) * m.arange(y.numel()).reshape(y.shape)).sum() for k, y in enumerate(parts))
    (gradient,) = m.autograd.grad(total, x)
    return type(given).__name__, seen, values, gradient.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_calls_beside_pytorch(seed: int, answers: Any) -> None:
    """Random calls of all forms, right and wrong ones."""
    for case in drawn(150, seed):
        theirs = answers([case, result], lambda case=case: repr(result(torch, *case)))
        assert repr(result(kiln, *case)) == theirs, case


# -- several views are one node ----------------------------------------------------------------------------

SEVERAL = {
    "split": lambda x: x.split([1, 2, 1], 1),
    "split of a size": lambda x: x.split(3, 1),
    "chunk": lambda x: x.chunk(2, 0),
    "chunk in one": lambda x: x.chunk(1, 0),
    "unbind": lambda x: x.unbind(1),
    "iteration": lambda x: tuple(x),
}


def nodes(m: Any, views: Any) -> Any:
    """Of the node of several views: how many it is, its name, what its hook is given."""
    x = m.arange(8.0).reshape(2, 4).requires_grad_()
    parts = views(x * 1)
    node, seen = parts[0].grad_fn, []
    node.register_prehook(lambda grads: seen.append([g if g is None else g.tolist() for g in grads]))
    node.register_hook(lambda ins, outs: seen.append([len(ins), len(outs)]))
    (parts[-1] * 2).sum().backward(retain_graph=True)
    sum((p * (k + 1)).sum() for k, p in enumerate(parts)).backward()
    return len({id(p.grad_fn) for p in parts}), node.name()[:5], seen, x.grad.tolist()


@pytest.mark.parametrize("what", SEVERAL)
def test_one_node(what: str, answers: Any) -> None:
    """The node's hooks see the gradients of all its outputs, None where there is none."""
    ours, theirs = answers.both(nodes, SEVERAL[what])
    assert ours == theirs


def uses(m: Any, views: Any) -> list[Any]:
    """Gradients kept and asked for, twice differentiated, and writes, of several views."""
    x = m.arange(1.0, 9.0).reshape(2, 4).double().requires_grad_()
    y = x * 1
    parts = views(y)
    parts[0].retain_grad()
    seen: list[Any] = []
    parts[-1].register_hook(lambda g: seen.append(g if g is None else g.tolist()))
    loss = sum((p**3).sum() for p in parts)
    (first,) = m.autograd.grad(loss, x, create_graph=True)
    found = [first.tolist(), *(g.tolist() for g in m.autograd.grad((first**2).sum(), [x]))]
    loss = sum((p**2).sum() for p in views(x))
    loss.backward()
    found += [x.grad.tolist(), seen, parts[0].grad is None]
    found += [g.tolist() for g in m.autograd.grad(parts[0].sum() * 2, [y, parts[0]])]
    for write in (lambda p: p.mul_(2), lambda p: p.add_(1.0)):
        try:
            write(parts[0])
        except RuntimeError as error:
            found.append(str(error).split(" is a view ")[1][:60])
    with m.no_grad():
        parts[0].mul_(2)
    found.append(y.tolist())
    try:  # of which backward reads nothing: what was written decides
        found.append(m.autograd.grad((views(x)[0] * parts[0]).sum(), x)[0].tolist())
    except RuntimeError as error:
        found.append(str(error)[:20])
    z = x * 1
    whole = views(z)
    z.mul_(3)
    try:
        found.append(whole[0].grad_fn is None)
    except RuntimeError as error:
        found.append(str(error).split(" is a view ")[1][:40])
    return found


@pytest.mark.parametrize("what", SEVERAL)
def test_uses_of_one_node(what: str, answers: Any) -> None:
    ours, theirs = answers.both(uses, SEVERAL[what])
    assert ours == theirs


@pytest.mark.parametrize("what", ["split", "unbind"])
def test_gradcheck(what: str) -> None:
    """Once and twice, with outputs that nobody uses."""
    x = kiln.arange(1.0, 9.0).reshape(2, 4).double().requires_grad_()
    assert kiln.autograd.gradcheck(lambda x: SEVERAL[what](x)[1:], (x,))
    assert kiln.autograd.gradgradcheck(lambda x: SEVERAL[what](x * x)[::2], (x,))


def test_more_views_than_a_node_has_outputs() -> None:
    """Each has a node of its own: the same values and gradients."""
    x = kiln.arange(200.0).reshape(100, 2).requires_grad_()
    for parts in (x.unbind(), x.split(1), x.split([1] * 99 + [1])):
        assert len(parts) == 100 and all(p._base is not None for p in parts)
        (parts[3].sum() + 2 * parts[99].sum()).backward()
        with pytest.raises(RuntimeError, match="returns multiple views"):
            parts[0].mul_(2)
    wanted = kiln.zeros(100, 2)
    wanted[3], wanted[99] = 3.0, 6.0
    assert x.grad.tolist() == wanted.tolist()


# -- joins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 31, 65, 130, 300])
def test_many_arrays(count: int) -> None:
    """Values, dtypes and gradients, joined along both dims and stacked."""
    rng = np.random.default_rng(count)
    arrays = [rng.normal(size=(2, 3)).astype("float32") for _ in range(count)]
    for name, dim, join in (("cat", 0, np.concatenate), ("cat", -1, np.concatenate), ("stack", 1, np.stack)):
        xs = [kiln.from_numpy(a.copy()).requires_grad_() for a in arrays]
        y = getattr(kiln, name)(xs, dim)
        wanted = join(arrays, dim)
        assert y.tolist() == wanted.tolist()
        weight = kiln.from_numpy(rng.normal(size=wanted.shape).astype("float32"))
        (y * weight).sum().backward()
        ones = join([np.full((2, 3), k) for k in range(count)], dim)
        for k, x in enumerate(xs):
            mine = weight.numpy()[ones == k]
            assert sorted(x.grad.flatten().tolist()) == sorted(mine.tolist())
        with kiln.no_grad():
            assert getattr(kiln, name)([x.detach() for x in xs], dim).tolist() == wanted.tolist()


def test_joined_rows_of_every_size() -> None:
    """Short rows and long ones, in order or not, of every width, beside NumPy."""
    rng = np.random.default_rng(0)
    for dtype in ("float64", "float32", "int16", "uint8", "bool"):
        for outer, inner in ((1, 40), (40, 1), (300, 3), (3, 5000)):
            a, b = ((rng.normal(size=(outer, inner * k)) * 5).astype(dtype) for k in (1, 2))
            for lay in (lambda x: x, lambda x: np.ascontiguousarray(x.T).T):
                x, y = kiln.from_numpy(lay(a)), kiln.from_numpy(lay(b))
                assert np.array_equal(kiln.cat([x, y, x], 1).numpy(), np.concatenate([a, b, a], 1))
                assert np.array_equal(kiln.stack([y, y], 1).numpy(), np.stack([b, b], 1))
                assert np.array_equal(kiln.cat([x.mT, y.mT]).numpy(), np.concatenate([a.T, b.T]))


def test_joined_into_an_operand() -> None:
    """`out=` may be what is read."""
    x = kiln.arange(4.0)
    kiln.cat([x[2:], x[:2]], out=x)
    assert x.tolist() == [2.0, 3.0, 0.0, 1.0]


@pytest.mark.parametrize("count", [2, 40])
def test_recorded_as_run(count: int) -> None:
    """A compiled function joins and parts with the bits of a plain one, gradients too."""

    def step(x: Any, w: Any) -> Any:
        rows = [row * w for row in x.unbind()]
        a, b = kiln.stack(rows, 1).chunk(2, 1)
        y = kiln.cat([a.tanh(), b.sigmoid()], 1)
        y.sum().backward()
        return y

    compiled = kiln.compile(step)
    rng = np.random.default_rng(1)
    data = rng.normal(size=(count, 3)).astype("float32")
    for _ in range(3):
        found = []
        for run in (step, compiled):
            x, w = (kiln.from_numpy(d.copy()).requires_grad_() for d in (data, data[0]))
            found.append((run(x, w).tolist(), x.grad.tolist(), w.grad.tolist()))
        assert found[0] == found[1]


def test_mapped() -> None:
    """Samples of a batch and tangents go through, as through single views."""
    x = kiln.arange(24.0).reshape(2, 3, 4)

    def parts(x: Any) -> Any:
        a, b = x.chunk(2, 1)
        return kiln.stack([kiln.cat([b, a], 1).mT.T, x], 0) + x[1] + x.unbind()[0]

    mapped = kiln.vmap(parts)(x)
    assert mapped.tolist() == kiln.stack([parts(s) for s in x]).tolist()
    gradient = kiln.func.vmap(kiln.func.grad(lambda x: (parts(x) ** 2).sum()))(x)
    single = kiln.stack([kiln.func.grad(lambda x: (parts(x) ** 2).sum())(s) for s in x])
    assert gradient.tolist() == single.tolist()
    value, tangent = kiln.func.jvp(parts, (x[0],), (x[1],))
    assert value.tolist() == parts(x[0]).tolist() and tangent.tolist() == parts(x[1]).tolist()


# -- what a call costs ---------------------------------------------------------------------------------------

QUICK = """
x.chunk(5, 1)
x.chunk(2, dim=1)
kiln.chunk(x, 5, 1)
x.split(4, 1)
x.split([5, 15], 1)
x.unbind()
tuple(x)
x.narrow(1, 3, 5)
x.select(1, 2)
x[0]
x[0, 1]
x[:, 1:3]
x[0, :, None]
x[..., 0]
x.view(20)
x.reshape(-1, 5)
x.unsqueeze(0)
x.squeeze(0)
x.transpose(0, 1)
x.t()
x.T
x.mT
x.expand(3, -1)
x.permute(1, 0)
x.flatten()
x.view_as(x)
kiln.cat([x, x])
kiln.cat((x, x), dim=1)
kiln.stack([x, x], 1)
"""


@pytest.mark.parametrize("call", QUICK.split("\n")[1:-1])
def test_no_python(call: str) -> None:
    """Not one frame of Python's is entered, with gradients or without."""
    frames: list[Any] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            frames.append(frame.f_code)

    for grad in (False, True):
        x = kiln.zeros(1, 20, requires_grad=grad)
        code = compile(call, "call", "eval")
        names = {"x": x, "kiln": kiln}
        eval(code, names)  # what is asked once
        sys.setprofile(watch)
        try:
            y = eval(code, names)
        finally:
            sys.setprofile(None)
        assert len(frames) == 1 and frames.pop() is code
        assert (y[0] if isinstance(y, tuple) else y).requires_grad == grad


X = kiln.ones(2, 3)
NEEDED: dict[str, dict[str, Any]] = {
    "view_as": {"other": X},
    "unsqueeze": {"dim": 0},
    "transpose": {"dim0": 0, "dim1": 1},
    "narrow": {"dim": 0, "start": 0, "length": 1},
    "select": {"dim": 0, "index": 1},
    "chunk": {"chunks": 2},
    "split": {"split_size_or_sections": 1},
}


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_missing_is_told(name: str) -> None:
    """Whichever arguments a call without Python lacks, or are None."""
    for given in product(("", "None", "all"), repeat=len(NEEDED[name])):
        kwargs = {k: v if how == "all" else None for how, (k, v) in zip(given, NEEDED[name].items()) if how}
        if kwargs == NEEDED[name]:
            getattr(X, name)(**kwargs)
            continue
        with pytest.raises(TypeError, match=name):
            getattr(X, name)(**kwargs)
        if "" not in given[: len(kwargs)]:
            with pytest.raises(TypeError, match=name):
                getattr(X, name)(*kwargs.values())


def test_nothing_is_compiled_for_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins of new counts, and parts of new counts, ask the compiler for no program and no kernel."""
    asked: list[str] = []

    def compile(request: str, arguments: tuple[Any, ...]) -> Any:
        asked.append(request)
        return service.compile(request, arguments)

    watching = type(service)("watching")
    watching.compile = compile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "watching", watching)
    x = kiln.arange(6.0).reshape(2, 3)
    y = x.clone().requires_grad_()
    _core.set_compiler("watching")
    try:
        for count in range(41, 49):
            kiln.cat([x] * count)
            kiln.stack([x.t()] * count, 1)
            kiln.cat([y] * count, 1)
            kiln.zeros(count, 2, requires_grad=True).unbind()
    finally:
        _core.set_compiler("kiln.capture.service")
    assert set(asked) <= {"op"}, asked


_ITEMS = (
    ("float32", (2.0, -3, True, float("nan"), 2**70, "t()", "t(4)", "t(3, 4)", "t(2, 4)", "t(4).double()")),
    ("float16", (2.0, 7, 1e9, "t(4)")),
    ("int64", (5, True, 2.5, 2**63, "t(4).long()", "t(4)")),
    ("uint8", (5, 300, -1, True)),
    ("bool", (True, 0, 2.5)),
)
_KEYS = ("0", "-1", "1:3", "...", "None", "::2", "0, 1:3", "..., -1", "1, None, 2", "7", "0:0", "()")


def written(m: Any, dtype: str, values: tuple[Any, ...]) -> list[str]:
    """What x is after `x[key] = value`, for all keys and values."""

    def t(*shape: int) -> Any:
        return m.arange(1.0, 13)[: int(np.prod(shape, dtype=int))].reshape(shape)

    found = []
    for key in _KEYS:
        for value in values:
            x = m.arange(12).reshape(3, 4).to(getattr(m, dtype))
            given = eval(value, {"t": t}) if isinstance(value, str) else value
            try:
                exec(f"x[{key}] = given", {"x": x, "given": given})
                found.append(f"[{key}] = {value}: {x.double().tolist()}")
            except (RuntimeError, IndexError, TypeError, ValueError, OverflowError):
                found.append(f"[{key}] = {value}: refused")
    return found


@pytest.mark.parametrize(("dtype", "values"), _ITEMS, ids=[dtype for dtype, _ in _ITEMS])
def test_values_written_at_places(dtype: str, values: tuple[Any, ...], answers: Any) -> None:
    """x[key] = value: what is written, and whether it is refused."""
    theirs = answers([dtype, values, _KEYS, written], lambda: written(torch, dtype, values))
    assert written(kiln, dtype, values) == theirs


def test_values_written_at_places_are_writes() -> None:
    """They are counted, and refused where a gradient needs what was there; and where values overlap them."""
    x = kiln.arange(6.0)
    version = x._version
    x[1] = 2.0
    x[2:4] = kiln.zeros(2)
    assert x._version == version + 2
    leaf = kiln.ones(3, requires_grad=True)
    y = leaf * 2
    (y * y)[0].backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="leaf"):
        leaf[0] = 1.0
    square = y * y
    y.detach()[0] = 5.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:] = x[:-1]
    assert x.tolist() == [0, 2, 0, 0, 4, 5]
    z = kiln.ones(3) * leaf
    z[0] = 7.0
    z.sum().backward()
    assert leaf.grad.tolist()[0] == 4.0 * 2  # of y's square alone
    with kiln.no_grad():
        leaf[0] = 9.0
    assert leaf[0].item() == 9.0
