"""Sizes that vary, said by tensors and by examples; programs of models that go by values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from program_files import again

import kiln
from kiln import nn
from kiln.export import AdditionalInputs, Dim, ShapesCollection, draft_export, export, register_dataclass
from kiln.nn import functional as F
from kiln.tracing.recorder import TracingError


def _sum(x: Any, rest: Any, *, scale: Any) -> Any:
    return (x + rest["y"][0]) * scale


def test_a_collection_says_which_sizes_vary_by_the_tensors_themselves() -> None:
    x, y, scale = kiln.ones(3, 2), kiln.ones(3, 2), kiln.ones(1)
    shapes = ShapesCollection()
    shapes[x] = (Dim("n", max=9), None)
    shapes[y][0] = Dim("n", max=9)
    assert len(shapes) == 2
    program = again(export(_sum, (x, {"y": [y]}), {"scale": scale}, dynamic_shapes=shapes))
    assert program.range_constraints == {"n": (0, 9)}
    assert program(kiln.ones(5, 2), {"y": [kiln.ones(5, 2)]}, scale=scale).shape == (5, 2)
    with pytest.raises(AssertionError, match="do not match"):
        shapes[x] = (None, None)
    with pytest.raises(AssertionError, match="non-tensor"):
        shapes["x"] = (None,)
    shapes[kiln.ones(7)] = (None,)
    with pytest.raises(ValueError, match=r"not found in args: tensors of shapes \[7\]"):
        export(_sum, (x, {"y": [y]}), {"scale": scale}, dynamic_shapes=shapes)


def test_further_examples_say_which_sizes_vary() -> None:
    more = AdditionalInputs()
    more.add((kiln.ones(5, 2), {"y": [kiln.ones(5, 2)]}), {"scale": kiln.ones(1)})
    args = kiln.ones(3, 2), {"y": [kiln.ones(3, 2)]}
    program = export(_sum, args, {"scale": kiln.ones(1)}, dynamic_shapes=more)
    assert program(kiln.ones(4, 2), {"y": [kiln.ones(4, 2)]}, scale=kiln.ones(1)).shape == (4, 2)
    with pytest.raises(RuntimeError, match="x: dim 1 must be 2, got 3"):
        program(kiln.ones(4, 3), {"y": [kiln.ones(4, 3)]}, scale=kiln.ones(1))
    with pytest.raises(AssertionError, match="must be a tuple"):
        more.add([kiln.ones(1)])  # type: ignore[arg-type]  # what is refused
    more.add((kiln.ones(5), {"y": [kiln.ones(5, 2)]}), {"scale": kiln.ones(1)})
    with pytest.raises(ValueError, match="but for sizes"):
        export(_sum, args, {"scale": kiln.ones(1)}, dynamic_shapes=more)


def test_a_draft_goes_by_the_values_of_the_example_and_checks_them() -> None:
    def f(x: Any, n: Any) -> Any:
        return x[: int(n)] if x.sum() > 0 else -x

    with pytest.raises(RuntimeError, match=r"test_dynamic_shapes\.py:\d+"):
        export(f, (kiln.ones(4), kiln.tensor(2)))
    with pytest.warns(UserWarning, match=r"goes by values of the example.*test_dynamic_shapes\.py:\d+"):
        program = draft_export(f, (kiln.ones(4), kiln.tensor(2)))
    for made in (program, again(program)):
        assert made(kiln.tensor([1.0, 2.0, 3.0, 4.0]), kiln.tensor(2)).tolist() == [1.0, 2.0]
        for x, n in ((-kiln.ones(4), 2), (kiln.ones(4), 3)):
            with pytest.raises(RuntimeError, match="when the program was made"):
                made(x, kiln.tensor(n))


def test_dataclasses_are_arguments_and_results() -> None:
    @dataclass
    class Batch:
        x: Any
        scale: float = 2.0

    register_dataclass(Batch)
    batch = Batch(kiln.ones(2))
    program = export(lambda b: Batch(b.x * b.scale, b.scale), (batch,))
    for k in range(4):  # the core learns calls, not what is in objects
        made = program(Batch(kiln.ones(2) * k))
        assert type(made) is Batch and made.x.tolist() == [2.0 * k] * 2 and made.scale == 2.0
    assert again(program)({"x": kiln.ones(2), "scale": 2.0})["x"].tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="expected a dataclass"):
        register_dataclass(int)


def test_sizes_that_are_left_open_are_equal_where_the_model_needs_it() -> None:
    x, y = kiln.ones(3, 4), kiln.ones(3, 4)
    for hint in (Dim.AUTO, Dim.DYNAMIC):
        program = export(lambda x, y: x + y, (x, y), dynamic_shapes=({0: hint}, {0: hint}))
        assert program(kiln.ones(7, 4), kiln.ones(7, 4)).shape == (7, 4)
        with pytest.raises(RuntimeError, match="y: dim 0 must be"):
            program(kiln.ones(7, 4), kiln.ones(5, 4))
    alone = export(lambda x, y: (x * 2, y), (x, y), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    assert [t.shape[0] for t in alone(kiln.ones(7, 4), kiln.ones(5, 4))] == [7, 5]


def test_what_the_model_fixes_is_as_in_the_example_where_that_is_left_to_it() -> None:
    def g(x: Any) -> Any:
        return x.reshape(x.shape[0], 2, 2)

    program = export(g, (kiln.ones(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    assert program(kiln.ones(6, 4)).shape == (6, 2, 2)
    with pytest.raises(RuntimeError, match="x: dim 1 must be 4, got 5"):
        program(kiln.ones(6, 5))
    with pytest.raises(RuntimeError):
        export(g, (kiln.ones(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.DYNAMIC},))


def _shapes(program: Any) -> list[list[str]]:
    """The sizes of inputs: names of those that vary, by which they are equal."""
    found = program._captured
    return [[found.size_text(n) for n in x.shape] for x in found.inputs]


def _open(*args: Any) -> Any:
    return tuple([dict.fromkeys(range(x.ndim), Dim.AUTO) for x in args])


def _exported(f: Any, *shapes: tuple[int, ...]) -> Any:
    args = tuple(map(kiln.ones, shapes))
    return export(f, args, dynamic_shapes=_open(*args))


def test_sizes_are_equal_by_what_the_model_does_and_not_by_the_example() -> None:
    """As torch.export: `cat` needs all but one dim equal, `@` the inner, `x[:, 0] + y[:, 0]` the first."""
    joined = _exported(lambda x, y: kiln.cat([x, y]), (8, 6), (8, 6))
    assert _shapes(joined) == [["x_0", "x_1"], ["y_0", "x_1"]]
    assert _shapes(_exported(lambda x, y: x @ y, (8, 8), (8, 8))) == [["x_0", "x_1"], ["x_1", "y_1"]]
    assert _shapes(_exported(lambda x: x @ x, (8, 8))) == [["x_0", "x_0"]]
    half = _exported(lambda x, y: (x[:, 0] + y[:, 0], x.sum(), y.sum()), (8, 6), (8, 6))
    assert _shapes(half) == [["x_0", "x_1"], ["x_0", "y_1"]]
    doubled = _exported(lambda x, y: kiln.cat([x, x]) + y, (4, 3), (8, 3))
    assert _shapes(doubled) == [["x_0", "x_1"], ["2*x_0", "x_1"]]
    for program in (doubled, again(doubled)):
        assert program(kiln.ones(5, 2), kiln.ones(10, 2)).shape == (10, 2)
        with pytest.raises(RuntimeError, match=r"y: dim 0 must be 2\*x_0 = 10, got 9: .*calls add"):
            program(kiln.ones(5, 2), kiln.ones(9, 2))
    named = export(
        lambda x, y: x + y, (kiln.ones(4), kiln.ones(4)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim("n")})
    )
    assert _shapes(named) == [["n"], ["n"]]


def test_what_the_model_asks_of_sizes_is_checked_where_it_makes_no_number_of_them() -> None:
    pairs = _exported(lambda x: x.reshape(-1, 2), (8, 6))
    assert _shapes(pairs) == [["x_0", "x_1"]]
    for program in (pairs, again(pairs)):
        assert program(kiln.ones(3, 4)).shape == (6, 2)
        with pytest.raises(RuntimeError, match=r"was made where .*div\(x_0\*x_1, 2\) == 0 is True"):
            program(kiln.ones(3, 3))
    functional = kiln.nn.functional
    for f, shape, other, odd in (
        (lambda x: x.unflatten(1, (2, -1)), (8, 6), (3, 4), (3, 5)),
        (lambda x: functional.glu(x, 1), (8, 6), (3, 4), (3, 5)),
        (lambda x: functional.pixel_shuffle(x, 2), (2, 4, 8, 9), (1, 8, 3, 2), (1, 6, 3, 2)),
        (lambda x: functional.group_norm(x, 2), (2, 4, 8), (3, 6, 5), (3, 7, 5)),
    ):
        made = _exported(f, shape)
        assert _shapes(made) == [[f"x_{k}" for k in range(len(shape))]]
        x = kiln.randn(other)
        for program in (made, again(made)):
            assert program(x).tolist() == f(x).tolist()
            with pytest.raises(RuntimeError):
                program(kiln.ones(odd))
    even = _exported(lambda x: x if x.shape[0] % 2 == 0 else x * 2, (8, 6))
    assert even(kiln.ones(4, 2)).tolist() == kiln.ones(4, 2).tolist()
    with pytest.raises(RuntimeError, match="was made where"):
        even(kiln.ones(5, 2))


def test_a_size_that_is_made_a_number_says_why_it_is_one() -> None:
    looped = _exported(lambda x, y: sum(x[k] for k in range(x.shape[0])) + y, (3, 2), (2,))
    assert _shapes(looped) == [["3", "x_1"], ["x_1"]]
    for program in (looped, again(looped)):
        told = r"x: dim 0 must be 3, got 4: .*test_dynamic_shapes\.py:\d+ has the size x_0 read as a number"
        with pytest.raises(RuntimeError, match=told):
            program(kiln.ones(4, 2), kiln.ones(2))
    pooled = _exported(lambda x: kiln.nn.functional.adaptive_avg_pool1d(x, 3), (2, 3, 8))
    assert _shapes(pooled) == [["x_0", "x_1", "8"]]
    with pytest.raises(
        RuntimeError, match=r"x: dim 2 must be 8, got 9: .*a window has decides what a program"
    ):
        pooled(kiln.ones(2, 3, 9))
    with pytest.raises(TracingError, match="read as a number"):
        export(lambda x: x * int(x.shape[0]), (kiln.ones(3),), dynamic_shapes=({0: Dim.DYNAMIC},))


_VARY: dict[str, tuple[Any, tuple[int, ...], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    # a function, the example's shape, shapes that its program takes, and such that change what it consists of
    "split": (lambda x: x.split(2, 1), (4, 6), [(3, 5)], [(4, 7)]),
    "split, one size left": (lambda x: x.split([2, x.shape[1] - 2], 1), (4, 6), [(3, 9)], [(4, 1)]),
    "chunk": (lambda x: x.chunk(3, 1), (4, 6), [(3, 5), (3, 70), (2, 3)], [(4, 4)]),
    "tensor_split": (lambda x: x.tensor_split(3, 1), (4, 6), [(3, 5), (3, 70), (2, 2)], []),
    "tensor_split at": (lambda x: x.tensor_split([1, -2], 1), (4, 6), [(3, 5), (3, 9)], [(4, 1)]),
    "hsplit": (lambda x: kiln.hsplit(x, 2), (4, 6), [(3, 8)], [(3, 5)]),
    "diagonal": (lambda x: x.diagonal(), (4, 6), [(6, 4), (5, 5), (1, 3)], []),
    "diagonal of a square": (lambda x: x.diagonal(), (4, 4), [(6, 4), (2, 5)], []),
    "diagonal off": (lambda x: x.diagonal(2), (4, 6), [(6, 4), (5, 9)], [(4, 1)]),
    "trace": (lambda x: x.trace(), (4, 6), [(6, 4), (5, 5)], []),
    "max_pool1d": (
        lambda x: kiln.nn.functional.max_pool1d(x, 3, 2, 1, ceil_mode=True), (2, 8), [(3, 9), (1, 3)], []
    ),
    "avg_pool1d": (
        lambda x: kiln.nn.functional.avg_pool1d(x, 2, 3, ceil_mode=True),
        (2, 8), [(3, 9), (3, 10), (1, 4)], [],
    ),
    "lp_pool1d": (lambda x: kiln.nn.functional.lp_pool1d(x, 2, 2, 3, True), (2, 8), [(3, 9), (3, 10)], []),
    **{
        f"interpolate {mode} by {factor}": (
            lambda x, mode=mode, factor=factor: kiln.nn.functional.interpolate(
                x, scale_factor=factor, mode=mode
            ),
            (2, 3, 6),
            [(2, 1, 7), (1, 2, 13)],
            [],
        )
        for mode in ("nearest", "nearest-exact", "linear")
        for factor in (2, 1.5, 0.25)
    },
    "interpolate to": (
        lambda x: kiln.nn.functional.interpolate(x, 9, mode="linear"), (2, 3, 6), [(2, 1, 8)], [(1, 2, 5)]
    ),
    "interpolate corners": (
        lambda x: kiln.nn.functional.interpolate(x, scale_factor=2, mode="linear", align_corners=True),
        (2, 3, 6), [(2, 1, 7), (2, 1, 6)], [(1, 2, 2)],
    ),
    "interpolate as": (
        lambda x: kiln.nn.functional.interpolate(x[..., ::2], x.shape[-1], mode="linear"),
        (2, 3, 8), [(3, 2, 10)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _VARY)
def test_results_and_gradients_are_those_of_the_sizes_that_come(name: str) -> None:
    f, example, taken, refused = _VARY[name]
    program = _exported(f, example)
    assert all(n > 1 or text == "1" for n, text in zip(example, _shapes(program)[0]))
    for made in (program, again(program)):
        for shape in (example, *taken):
            x = kiln.randn(shape, requires_grad=True)
            y, z = f(x), made(x)
            y, z = (y, z) if isinstance(y, tuple) else ((y,), (z,))
            assert [part.tolist() for part in y] == [part.tolist() for part in z], shape
            weights = [kiln.randn(part.shape) for part in y]
            g, h = (
                kiln.autograd.grad(sum((part * w).sum() for part, w in zip(parts, weights)), x)[0]
                for parts in (y, z)
            )
            assert g.tolist() == h.tolist(), shape
        for shape in refused:
            with pytest.raises(RuntimeError, match="was made where"):
                made(kiln.ones(shape))


def test_sizes_that_are_1_stay_where_that_is_left_to_the_model() -> None:
    x, y = kiln.randn(3, 1), kiln.randn(1, 6)
    every = {0: Dim.AUTO, 1: Dim.AUTO}
    program = export(lambda x, y: x + y, (x, y), dynamic_shapes=(every, every))
    u, v = kiln.randn(5, 1), kiln.randn(1, 7)
    assert bool((program(u, v) == u + v).all())
    with pytest.raises(RuntimeError, match="x: dim 1 must be 1, got 7"):
        program(kiln.randn(5, 7), v)
    one = "'n' may have: add: The size of tensor a .*; n is 1 in the example.*declare it with its one size"
    with pytest.raises(TracingError, match=one):
        export(lambda x, y: x + y, (x, y), dynamic_shapes=({1: Dim("n")}, {}))


def test_what_a_function_raises_by_itself_is_raised_where_sizes_vary_too() -> None:
    with pytest.raises(RuntimeError, match="The size of tensor a") as raised:
        export(lambda x, y: x + y, (kiln.ones(3), kiln.ones(4)), dynamic_shapes=({0: Dim.AUTO}, None))
    assert type(raised.value) is not TracingError


def test_integers_are_divided_by_sizes_that_vary() -> None:
    program = export(
        lambda x, k: k % x.shape[0], (kiln.ones(3), kiln.arange(5)), dynamic_shapes=({0: Dim("n")}, {})
    )
    for made in (program, again(program), again(program)):
        assert made(kiln.ones(4), kiln.arange(5)).tolist() == [0, 1, 2, 3, 0]
        with pytest.raises(RuntimeError, match="an integer divided by 0"):
            made(kiln.ones(0), kiln.arange(5))


@pytest.mark.parametrize("shifts,dims", [((1, 2), (0, 1)), ((1, -3), (0, -1)), (5, ()), (7, 0)])
def test_elements_move_along_sizes_that_vary(shifts: Any, dims: Any) -> None:
    program = export(
        lambda x: kiln.roll(x, shifts, dims), (kiln.ones(3, 4),), dynamic_shapes=({0: Dim("a"), 1: Dim("b")},)
    )
    for shape in ((3, 4), (4, 5), (2, 9), (1, 1), (0, 3)):
        x = kiln.randn(shape)
        assert bool((program(x) == kiln.roll(x, shifts, dims)).all())


VARYING: dict[str, tuple[Any, Any, Any]] = {
    "a size that divides": (
        lambda x: F.max_pool2d(x, 2).repeat_interleave(2, 2) + x[..., :1],
        (1, 1, 8, 2), {2: 2 * Dim("n", min=1)},
    ),
    "a transposed convolution": (nn.ConvTranspose2d(2, 3, 2, 2), (1, 2, 3, 4), {3: Dim("n", min=1)}),
    "nearest": (nn.Upsample(scale_factor=2), (1, 2, 3, 4), {3: Dim("n", min=1)}),
    "bilinear": (nn.Upsample(scale_factor=(3, 2), mode="bilinear"), (1, 2, 3, 4), {3: Dim("n", min=1)}),
    "attention to some": (
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x[:, :, :1, :1] > 0),
        (2, 1, 5, 4), {0: Dim("batch"), 2: Dim("n", min=1)},
    ),
    "attention of one": (
        lambda x: F.scaled_dot_product_attention(x[:, :, :1], x, x), (2, 1, 5, 4), {2: Dim("n", min=1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARYING)
def test_every_declared_size_is_taken_after_a_file_too(name: str) -> None:
    """One, the largest and those between."""
    function, shape, dims = VARYING[name]
    program = export(function, (kiln.randn(*shape),), dynamic_shapes=(dims,))
    for made in (program, again(program)):
        report = made.verify(3, against=function)
        assert report.equal, report


def test_bags_that_do_not_ascend_are_refused_at_the_call() -> None:
    """Where bags begin is not read when a program is made."""
    table = kiln.randn(6, 2)
    some = {0: Dim("words", min=1)}, {0: Dim("bags", min=1)}
    ids, starts = kiln.tensor([1, 5, 0]), kiln.tensor([0, 2])
    program = again(export(lambda x, o: F.embedding_bag(x, table, o), (ids, starts), dynamic_shapes=some))
    for right in ([0, 2], [0], [0, 0, 3, 3]):
        assert program(ids, kiln.tensor(right)).equal(F.embedding_bag(ids, table, kiln.tensor(right)))
    for wrong in ([1, 2], [0, 2, 1], [0, 4]):
        with pytest.raises(RuntimeError, match="has to be 0, and offsets must ascend"):
            program(ids, kiln.tensor(wrong))


@pytest.mark.parametrize(
    ("positions", "checked"),
    [
        ("y.argmax(0, keepdim=True)", False),
        ("y.argsort(0)", False),
        ("y.topk(1)[1]", False),
        ("y.argmax().reshape(1)", True),
    ],
)
def test_positions_of_another_size_are_checked(positions: str, checked: bool) -> None:
    """Along a dim of the same size they need none, unless their own sizes were changed; where two sizes vary,
    the larger's are out of range.
    """
    of = eval(f"lambda y: {positions}")
    n, m = Dim("n"), Dim("m")

    def f(x: Any, y: Any) -> Any:
        return x.gather(0, of(y))

    x = kiln.arange(5.0)
    program = again(export(f, (x, x.clone()), dynamic_shapes=({0: n}, {0: m})))
    assert program(x, kiln.arange(4.0)).tolist() == f(x, kiln.arange(4.0)).tolist()
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        program(kiln.arange(3.0), x)
    alike = export(f, (x, x.clone()), dynamic_shapes=({0: n}, {0: n}))
    assert bool(alike._captured.checks) == checked
    y = kiln.arange(3.0)
    assert alike(y, y.clone()).tolist() == f(y, y).tolist()
