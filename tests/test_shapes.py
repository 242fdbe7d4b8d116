"""Creation, shapes and padding as PyTorch has them: a table of calls, and views drawn at random."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from backend import kiln, needs_torch, torch
from calls import outcome, shown
from hypothesis import assume, given, settings
from shape_calls import CALLS

from kiln.graph import graph
from kiln.graph.interpret import interpret
from kiln.graph.slots import array_input


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str, answers: Any) -> None:
    """The same results and types of exceptions as PyTorch's."""
    assert repr(outcome(call, kiln)) == repr(answers([call, outcome, shown], lambda: outcome(call, torch)))


# Views: each strategy draws a call that fits a shape.

Shape = tuple[int, ...]


def dims(ndim: int) -> Any:
    return st.integers(-ndim, ndim - 1)


@st.composite
def factored(draw: Any, total: int) -> list[int]:
    """Sizes whose product is `total`."""
    sizes, rest = [], total
    while rest > 1 and len(sizes) < 4:
        size = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        sizes.append(size)
        rest //= size
    return [*sizes, rest] if total else draw(st.permutations([0, 2, 3]))


@st.composite
def views(draw: Any, shape: Shape) -> tuple[str, tuple[Any, ...]]:
    """A method that gives a view (or several) and its arguments."""
    ndim = len(shape)
    total = int(np.prod(shape))
    names = ["unsqueeze", "squeeze_all", "expand", "reshape", "view", "permute", "T"]
    if ndim:
        names += ["select", "narrow", "slice", "squeeze", "transpose", "movedim", "unbind", "split", "chunk"]
        names += ["tensor_split", "unfold", "flatten", "unflatten"]
    if ndim >= 2:
        names += ["diagonal", "diagonal", "mT"]
    name = draw(st.sampled_from(names))
    dim = draw(dims(ndim)) if ndim else 0
    size = shape[dim] if ndim else 1
    if name == "unsqueeze":
        return name, (draw(st.integers(-ndim - 1, ndim)),)
    if name in ("squeeze_all", "T", "mT"):
        return name, ()
    if name == "expand":
        lead = draw(st.lists(st.integers(0, 2), max_size=1))
        kept = [draw(st.sampled_from((2, 1, -1) if n == 1 else (n, -1))) for n in shape]
        return name, ((*lead, *kept),)
    if name in ("reshape", "view"):
        return name, (draw(factored(total)),)
    if name == "permute":
        return name, (draw(st.permutations(range(ndim))),)
    if name in ("select", "unfold"):
        if not size:
            return "squeeze_all", ()
        length = draw(st.integers(0, size))
        return (
            (name, (dim, draw(st.integers(-size, size - 1))))
            if name == "select"
            else (name, (dim, length, draw(st.integers(1, 3))))
        )
    if name in ("narrow", "slice"):
        start = draw(st.integers(0, size))
        if name == "narrow":
            return name, (dim, start, draw(st.integers(0, size - start)))
        return name, (
            dim,
            draw(st.integers(-size - 1, size + 1)),
            draw(st.integers(-size - 1, size + 1)),
            draw(st.integers(1, 3)),
        )
    if name == "squeeze":
        return name, (tuple(draw(st.sets(st.integers(0, ndim - 1)))),)
    if name in ("transpose", "movedim"):
        return name, (dim, draw(dims(ndim)))
    if name == "diagonal":
        other = draw(dims(ndim).filter(lambda k: k % ndim != dim % ndim))
        return name, (draw(st.integers(-3, 3)), dim, other)
    if name == "unbind":
        return name, (dim,)
    if name == "flatten":
        first = dim % ndim
        return name, (first, draw(st.integers(first, ndim - 1)))
    if name == "unflatten":
        return name, (dim, draw(factored(size)))
    if name == "tensor_split" and draw(st.booleans()):
        return name, (draw(st.lists(st.integers(-4, 6), max_size=3)), dim)
    return name, (draw(st.integers(1, 4)), dim)


def apply(x: Any, name: str, args: tuple[Any, ...], pick: int) -> Any:
    """The view; of several the one to go on with."""
    if name == "slice":
        dim, *key = args
        return x[(slice(None),) * (dim % x.ndim) + (slice(*key),)]
    if name in ("T", "mT"):
        return x.mT if name == "mT" else x.permute(tuple(range(x.ndim)[::-1]))
    result = x.squeeze() if name == "squeeze_all" else getattr(x, name)(*args)
    if not isinstance(result, (tuple, list)):
        return result
    return result[pick % len(result)] if result else x


def geometry(x: Any) -> Any:
    """Shape, offset, and strides where these say anything."""
    if x.numel() == 0:
        return tuple(x.shape)
    strides = tuple(s for s, n in zip(x.stride(), x.shape) if n != 1)
    return tuple(x.shape), strides, x.storage_offset(), x.is_contiguous()


def storage(x: Any) -> int:
    return int(x.untyped_storage().data_ptr())


@needs_torch
@settings(max_examples=60)
@given(st.data())
def test_views(data: Any) -> None:
    """Chains of views: shapes, strides, offsets, values, gradients, and what shares memory, as PyTorch's."""
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape))
    x = kiln.arange(float(count)).reshape(shape).requires_grad_()
    x_ = torch.arange(float(count)).reshape(shape).requires_grad_()
    y, y_, trail = x, x_, []
    for _ in range(data.draw(st.integers(1, 4))):
        name, args = data.draw(views(tuple(y_.shape)))
        pick = data.draw(st.integers(0, 5))
        trail.append((name, args, pick))
        try:
            z_ = apply(y_, name, args, pick)
        except RuntimeError:  # a view across strides
            with pytest.raises(RuntimeError):
                apply(y, name, args, pick)
            continue
        y, y_ = apply(y, name, args, pick), z_
        assert geometry(y) == geometry(y_), trail
        assert y.tolist() == y_.tolist(), trail
        if count and y_.numel():
            assert (storage(y) == storage(x)) == (storage(y_) == storage(x_)), trail
    (y * y).sum().backward()
    (y_ * y_).sum().backward()
    assert x.grad.tolist() == x_.grad.tolist(), trail


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@needs_torch
@given(shapes, shapes, shapes)
def test_broadcasting(a: Shape, b: Shape, c: Shape) -> None:
    """Shapes broadcast to PyTorch's, or fail where its do."""
    call = f"k.broadcast_shapes({a}, {b}, {c})"
    assert outcome(call, kiln) == outcome(call, torch)
    call = f"[x.stride() for x in k.broadcast_tensors(k.zeros({a}), k.zeros({b}))]"
    if 0 not in a + b:
        assert outcome(call, kiln) == outcome(call, torch) or 1 in a + b


@needs_torch
@settings(max_examples=40)
@given(st.data())
def test_padding(data: Any) -> None:
    """Every mode, every number of dims, widths of both signs: values, gradients and errors as PyTorch's."""
    count = data.draw(st.integers(1, 3))
    shape = (
        *data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)),
        *data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)),
    )
    widths = data.draw(st.lists(st.integers(-1, 3), min_size=2 * count, max_size=2 * count))
    sizes = [n + a + b for n, a, b in zip(shape[::-1], widths[::2], widths[1::2])]
    assume(min(sizes) >= 1)  # PyTorch's modes differ in what they say of nothing
    mode = data.draw(st.sampled_from(("constant", "reflect", "replicate", "circular")))
    assume(mode != "circular" or min(widths) >= 0)  # there it may show what was never written
    made = f"k.arange({float(np.prod(shape))}).reshape({shape}).requires_grad_()"
    padded = f"(lambda x: (x, F.pad(x, {widths}, '{mode}')))({made})"
    result = f"(lambda x, y: (y.detach(), k.autograd.grad((y * y).sum(), x)))(*{padded})"
    ours, theirs = outcome(result, kiln), outcome(result, torch)
    assert ours == theirs, (shape, widths, mode)


def test_recorded_views_are_views() -> None:
    """Inside a recorded function a diagonal and windows see what is written to what they view, and write
    it.
    """

    def step(x: Any) -> Any:
        y = x * 2
        y.diagonal().add_(1)
        windows = y.t().unfold(0, 2, 1)
        y.mul_(3)
        return y, windows.sum(), windows[0] + y.diagonal(1)[0]

    x = kiln.arange(9.0).reshape(3, 3)
    want = [r.tolist() for r in step(x)]
    recorded = kiln.compile(step)
    for _ in range(3):
        assert [r.tolist() for r in recorded(x)] == want


SYMBOLIC: dict[str, Any] = {
    "flip": lambda x: x.flip((0, 1)),
    "roll": lambda x: x.roll((1, -2), (0, 1)),
    "roll of all": lambda x: x.roll(3),
    "pad": lambda x: F.pad(x, (1, -2, 0, 1), value=3.0),
    "reflect": lambda x: F.pad(x.unsqueeze(0), (1, 2, 1, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x.unsqueeze(0), (2, 1, 1, 3), mode="replicate"),
    "circular": lambda x: F.pad(x.unsqueeze(0), (1, 1, 1, 1), mode="circular"),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "tril": lambda x: x.tril(-1),
    "diag_embed": lambda x: x.diag_embed(1),
    "diagonal": lambda x: kiln.matmul(x, x.transpose(0, 1)).diagonal(),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "diff": lambda x: x.diff(2),
    "gradient": lambda x: kiln.gradient(x, dim=1, edge_order=2)[0],
    "block_diag": lambda x: kiln.block_diag(x, x),
    "meshgrid": lambda x: kiln.cartesian_prod(x.select(0, 0), x.select(1, 1)),
    "select_scatter": lambda x: kiln.select_scatter(x, x.select(0, 0), 0, 1),
    "rot90": lambda x: x.rot90(),
    "broadcast_tensors": lambda x: kiln.broadcast_tensors(x, x.select(0, 0))[1],
}
F = kiln.nn.functional


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name: str) -> None:
    """One graph, made without knowing any size, gives what each call on tensors gives."""
    made = graph.Graph()
    x = array_input(made, "float32", (False, False))
    with graph.building(made):
        made.finish([SYMBOLIC[name](x)])
    for shape in ((4, 5), (5, 5), (6, 3)):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        want = SYMBOLIC[name](kiln.from_numpy(array)).numpy()
        np.testing.assert_array_equal(interpret(made, [array])[0], want)


def test_as_strided_refuses_gradients_it_cannot_place() -> None:
    """Through a view that does not fill its memory the derivative by places would be wrong."""
    x = kiln.arange(6.0, requires_grad=True)
    with pytest.raises(NotImplementedError, match="contiguous"):
        (x * 1)[2:].as_strided((2,), (1,))
    y = (x * 1).reshape(2, 3).t()
    y.as_strided((2, 2), (1, 2), 1).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_views_made_in_place_share_memory() -> None:
    """`t_` and its kin change the tensor's look, not its memory."""
    x = kiln.zeros(2, 3)
    view = x[0]
    assert x.t_() is x and tuple(x.shape) == (3, 2)
    x[2, 0] = 7
    assert view.tolist() == [0.0, 0.0, 7.0]


@needs_torch
def test_windows_of_signals() -> None:
    """The cosine windows to float64's precision."""
    for name, args in (
        ("hann", ()),
        ("hamming", (False, 0.5, 0.4)),
        ("blackman", ()),
        ("kaiser", (True, 9.0)),
    ):
        ours = getattr(kiln, f"{name}_window")(50, *args, dtype=kiln.float64)
        theirs = getattr(torch, f"{name}_window")(50, *args, dtype=torch.float64)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-12)


def test_bits_of_another_dtype_share_memory() -> None:
    """What is written to a tensor or to its `view(dtype)` is seen by the other, recorded too."""
    x = kiln.arange(3.0)
    bits = x.view(kiln.int32)
    bits[0] = 1065353216
    x[1] = -0.0
    assert x.tolist() == [1.0, 0.0, 2.0] and bits[1].item() == -(2**31)
    step = kiln.compile(lambda a: (a.mul_(2), a.view(kiln.int32) + 0))
    for _ in range(3):
        y, seen = step(x)
        assert seen.tolist() == y.view(kiln.int32).tolist()


@pytest.mark.parametrize("call", [
    "x.flip(dims=[-1])", "x.permute(dims=(1, 0))", "x.repeat(repeats=(2, 1))", "x.expand(size=(2, 3, 3))",
    "x.view(size=(9,))", "lib.reshape(x, shape=(9,))", "lib.tile(x, dims=(2,))", "x.sum_to_size(size=(1, 3))",
    "x.split(split_size=2)[1]", "lib.narrow(x, 1, lib.tensor(-2), 2)", "x[:, (0, 2)]", "x[range(2)]",
    "x[lib.tensor([1, 0, 1], dtype=lib.uint8)]", "lib.tensor([x[0].numpy(), x[1].numpy()])",
    "x.H", "x.mH", "x.real",
    "lib.tensor([4.0 in x, 9.5 in x, x[1] in x, x.is_cuda, x.is_sparse])", "lib.tensor(x.get_device())",
])  # fmt: skip
def test_calls_as_programs_write_them(call: str, answers: Any) -> None:
    def result(lib: Any) -> Any:
        return eval(call, {"lib": lib, "x": lib.arange(9.0).view(3, 3)})

    ours, theirs = result(kiln), answers([result, call], lambda: result(torch))
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]
    assert ours.tolist() == theirs.tolist()
