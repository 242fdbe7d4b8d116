"""Traces with sizes that vary: the function's bits at every size, and a sentence for every wrong one."""

from __future__ import annotations

from typing import Any

import pytest

import kiln
import kiln.nn.functional as F
from kiln.export import Dim


def _bits(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_bits, a, b))
    if not isinstance(a, kiln.Tensor):
        return bool(a == b)
    return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())


def _views(x: Any, y: Any) -> Any:
    n = x.shape[0]
    z = x.view(n, 2, -1).transpose(0, 1).reshape(2 * n, -1)
    wide = x.unsqueeze(1).expand(-1, 5, -1)
    return z, x.flatten(), x[:, 1:], wide, kiln.cat([x, y[:, :4]], 0), x.T, x.size(0) * 2 + 1, x.numel()


def _numbers(x: Any, y: Any) -> Any:
    n = len(x) if False else x.size(0)
    places = kiln.arange(n) + y.sum(1)
    mask = kiln.zeros(n, 3)
    mask += 1
    half = kiln.ones(n // 2, 2)
    return places.softmax(0), mask * n, half, kiln.arange(0, 2 * n + 1, 2), x.mean(0, keepdim=True) + x


def _layers(x: Any, y: Any) -> Any:
    q = F.layer_norm(x, (4,))
    a = F.scaled_dot_product_attention(q[None], x[None], x[None])
    return F.gelu(a) @ y[:, :4].T, x.var(1), x.cumsum(0), F.softmax(y, 0), x.clone().add_(1).to(kiln.float64)


@pytest.mark.parametrize("f", [_views, _numbers, _layers])
def test_every_size_has_the_bits_of_the_function(f: Any) -> None:
    """One trace, whatever the size; also those at which sizes are 1 or 0."""
    kiln.manual_seed(0)
    batch = Dim("batch")
    shapes = {"x": {0: batch}, "y": {0: batch}}
    traced = kiln.jit.trace(f, (kiln.randn(3, 4), kiln.randn(3, 5)), dynamic_shapes=shapes)
    for n in {_views: (3, 1, 2, 7), _layers: (3, 2, 7)}.get(f, (3, 1, 2, 7, 0)):
        x, y = kiln.randn(n, 4), kiln.randn(n, 5)
        assert _bits(f(x, y), traced(x, y)), n


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[kiln.randperm(x.shape[0])],
        lambda x: kiln.randperm(x.size(0) + 2, dtype=kiln.int32),
        lambda x: kiln.randint(-x.shape[0], x.shape[0], (x.shape[0],)),
        lambda x: kiln.randint_like(x, x.shape[0] + 1),
        lambda x: x.clone().random_(0, x.shape[0]),
    ],
)
def test_draws_below_a_size_that_varies(f: Any) -> None:
    """The numbers that the function draws; what raises for a size is asked of it."""
    traced = kiln.jit.trace(f, kiln.ones(5, 3), dynamic_shapes={"x": {0: Dim("n", min=1)}})
    for n in (5, 1, 7, 300):
        x = kiln.arange(3.0 * n).reshape(n, 3)
        kiln.manual_seed(n)
        expected = f(x.clone())
        kiln.manual_seed(n)
        assert _bits(expected, traced(x.clone())), n


def test_draws_that_a_dtype_does_not_hold() -> None:
    shapes = {"x": {0: Dim("n")}}
    narrow = kiln.jit.trace(
        lambda x: kiln.randperm(x.shape[0], dtype=kiln.uint8), kiln.ones(5, 3), dynamic_shapes=shapes
    )
    with pytest.raises(RuntimeError, match="was made where n > 255 is False"):
        narrow(kiln.ones(300, 3))
    empty = kiln.jit.trace(
        lambda x: kiln.randint(0, x.shape[0] - 3, (4,)), kiln.ones(5), dynamic_shapes=shapes
    )
    with pytest.raises(RuntimeError, match="which it is not here"):
        empty(kiln.ones(3))


def test_derived_sizes() -> None:
    """`2 * n + 1` is checked where it is declared, and what it is of is found by it."""
    n = Dim("n", min=1, max=10)

    def f(x: Any, y: Any) -> Any:
        return x.sum(0) + y[1:].reshape(2, -1).sum()

    traced = kiln.jit.trace(f, (kiln.ones(4), kiln.ones(9)), dynamic_shapes=({0: n}, {0: 2 * n + 1}))
    assert _bits(f(kiln.ones(3), kiln.ones(7)), traced(kiln.ones(3), kiln.ones(7)))
    with pytest.raises(RuntimeError, match=r"y: dim 0 must be 2\*n \+ 1 = 7, got 8"):
        traced(kiln.ones(3), kiln.ones(8))
    with pytest.raises(RuntimeError, match="x: dim 0 is 11, n must be from 1 to 10"):
        traced(kiln.ones(11), kiln.ones(23))


def test_what_is_wrong_is_said_in_the_inputs_own_name() -> None:
    """Sizes, ranks, dtypes, containers."""

    def f(batch: Any, scale: float) -> Any:
        return batch["a"] * scale + batch["b"]

    given = {"a": kiln.ones(2, 3), "b": kiln.ones(3)}
    traced = kiln.jit.trace(f, (given, 2.0))
    assert traced(given, 2.0).tolist() == [[3.0] * 3] * 2 == traced(batch=given, scale=2.0).tolist()
    with pytest.raises(RuntimeError, match=r"batch\['a'\]: dim 1 must be 3, got 4"):
        traced({"a": kiln.ones(2, 4), "b": kiln.ones(3)}, 2.0)
    with pytest.raises(RuntimeError, match=r"batch\['b'\]: expected float32, got float64 tensor"):
        traced({"a": kiln.ones(2, 3), "b": kiln.ones(3).double()}, 2.0)
    with pytest.raises(TypeError, match="scale: must be 2.0, got 3.0"):
        traced(given, 3.0)
    with pytest.raises(TypeError, match=r"batch: missing \['b'\]"):
        traced({"a": kiln.ones(2, 3)}, 2.0)
    with pytest.raises(ValueError, match="no input is called 'z'"):
        kiln.jit.trace(f, (given, 2.0), dynamic_shapes={"z": {0: Dim("n")}})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda x: x if x.shape[0] == 3 else -x, "branches on"),
        (lambda x: sum(x[k] for k in range(x.shape[0])), "read as a number"),
        (lambda x: [r * 2 for r in x], "read as a number|as a setting"),
        (lambda x: x * float(x.shape[0]), "read as a float"),
        (lambda x: x * len(f"{x.shape[0]}"), "made a text"),
        (lambda x: x * {3: 1.0}.get(x.shape[0], 2.0), "used as a key"),
        (lambda x: x + kiln.ones(3, 4), "makes n equal 3|makes 3 equal n"),
        (lambda x: x.view(3, 4), "equal"),
        (lambda x: x * int(x.shape[0] / 2), "read as a float"),
    ],
)  # fmt: skip
def test_a_size_that_varies_is_not_baked_in(body: Any, said: str) -> None:
    """What fixes it is refused with the line; with on_data="check" it is kept and checked."""
    with pytest.raises(RuntimeError, match=said) as caught:
        kiln.jit.trace(body, kiln.ones(3, 4), dynamic_shapes={"x": {0: Dim("n")}})
    assert "test_sizes.py" in str(caught.value)


def test_a_size_that_is_read_can_be_checked() -> None:
    """The program raises where the size is another one."""

    def f(x: Any) -> Any:
        return x * float(x.shape[0])

    traced = kiln.jit.trace(f, kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}}, on_data="check")
    assert traced(kiln.ones(3)).tolist() == [3.0] * 3
    with pytest.raises(RuntimeError, match="was made where n == 3 is True"):
        traced(kiln.ones(4))


def test_questions_about_sizes_follow_from_ranges_or_are_checked() -> None:
    """`n > 8` of n from 1 to 8 is no question; one that is open is asked again at each call."""

    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] > 8 else x + 1

    known = kiln.jit.trace(f, kiln.ones(3), dynamic_shapes={"x": {0: Dim("n", min=1, max=8)}})
    assert not known.captured.guards
    asked = kiln.jit.trace(f, kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}})
    assert asked(kiln.ones(5)).tolist() == [2.0] * 5
    with pytest.raises(RuntimeError, match="was made where n > 8 is False"):
        asked(kiln.ones(9))


PARTS = {
    "x[:, 0]": lambda x: x[:, 0],
    "x[-1]": lambda x: x[-1],
    "x[1:]": lambda x: x[1:],
    "x[::2, ::3]": lambda x: x[::2, ::3],
    "x[:, : n - 1]": lambda x: x[:, : x.shape[0] - 1],
    "x.T[1:3]": lambda x: x.T[1:3],
    "x.movedim(0, 1)[2]": lambda x: x.movedim(0, 1)[2],
    "x.view(-1)[::2]": lambda x: x.view(-1)[::2],
    "x.unsqueeze(1)[:, :, 1:]": lambda x: x.unsqueeze(1)[:, :, 1:],
    "x.narrow(0, 1, 2).T": lambda x: x.narrow(0, 1, 2).T,
    "x[:, :4].view(n, 2, 2)[:, 1]": lambda x: x[:, :4].view(x.shape[0], 2, 2)[:, 1],
    "x.view(n, 3, 2).diagonal(0, 1, 2)": lambda x: x.view(-1, 3, 2).diagonal(0, 1, 2),
    "x.view(n, 2, 3)[:, :, 1]": lambda x: x.view(x.shape[0], 2, -1)[:, :, 1],
    "x[1:].view(-1, 3)[::2]": lambda x: x[1:].view(-1, 3)[::2],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_written_and_read_at_every_size(part: str, tmp_path: Any) -> None:
    """In the function, its trace and its program in a file: values and gradients."""

    def write(x: Any) -> Any:
        y = x * 1.5
        before, again = PARTS[part](y), PARTS[part](y)
        before.mul_(2.0)
        y.add_(1.0)
        return y, before * 2, again + x.sum()

    example = (kiln.arange(30.0).reshape(5, 6),)
    dynamic = {"x": {0: Dim("n", min=3)}}
    traced = kiln.jit.trace(write, example, dynamic_shapes=dynamic)
    traced.save(tmp_path / "part.kiln")
    for size in (3, 7):
        found = []
        for run in (write, traced, kiln.jit.load(tmp_path / "part.kiln")):
            x = kiln.arange(6.0 * size).reshape(size, 6).requires_grad_()
            results = run(x)
            sum((y * y).sum() for y in results).backward()
            found.append((*results, x.grad))
        assert _bits(found[0], found[1]) and _bits(found[0], found[2])


def test_strides_of_a_part_vary_with_the_size() -> None:
    def columns(x: Any) -> Any:
        y = x.T.clone()
        return y[1:].stride(0), y[1:].storage_offset(), y[:, 0].stride(), y[:2, :3].sum()

    traced = kiln.jit.trace(columns, (kiln.ones(5, 6),), dynamic_shapes={"x": {0: Dim("n", min=3)}})
    x = kiln.arange(42.0).reshape(7, 6)
    assert _bits(traced(x)[:2], columns(x)[:2]) and _bits(traced(x)[3], columns(x)[3])
