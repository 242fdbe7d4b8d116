"""kiln.compile: Python runs every call, and its result and final state are eager's."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from backend import check_same, kiln, needs, needs_kiln, normal, recorded, tensor, values

from kiln.testing.compare import first_difference, freeze, same_bits, to_array

scale = 2.0
table = {"scale": 3.0}


def both(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """`fn` eagerly and recorded on the same sequence of calls (made by zero-argument functions where they
    are tensors).
    """
    for compiled in (kiln.compile(fn), recorded(fn)):
        for number, call in enumerate(calls):
            one = freeze(fn(*(a() if callable(a) else a for a in call)))
            two = freeze(compiled(*(a() if callable(a) else a for a in call)))
            assert (found := first_difference(one, two, exact=True)) is None, f"call {number + 1}: {found}"


def x() -> Any:
    """A fresh operand."""
    return normal(3, 4)


# -- Python state ----------------------------------------------------------------------------------


def test_globals_and_closures_change_between_calls() -> None:
    """What Python reads, it reads at every call."""
    global scale
    local = 1.0

    def program(t: Any) -> Any:
        return t * scale + local * table["scale"]

    compiled = kiln.compile(program)
    try:
        for numbers in (
            (2.0, 1.0, 3.0),
            (2.0, 1.0, 3.0),
            (5.0, 1.0, 3.0),
            (5.0, 7.0, 3.0),
            (5.0, 7.0, 9.0),
        ):
            scale, local, table["scale"] = numbers
            assert same_bits(to_array(compiled(x())), to_array(program(x())))
    finally:
        scale, table["scale"] = 2.0, 3.0


def test_lists_and_dicts_are_mutated() -> None:
    """Appends, pops and assignments inside happen once per call, on the caller's objects."""

    def program(t: Any, items: list[Any], named: dict[str, Any]) -> Any:
        items.append(t * len(items))
        named["last"] = items[-1]
        if len(items) > 3:
            named["gone"] = items.pop(0)
        return sum(i.sum() for i in items[1:]) if len(items) > 1 else t.sum()

    compiled = kiln.compile(program)
    states: list[tuple[list[Any], dict[str, Any]]] = [([], {}), ([], {})]
    for _ in range(6):
        one, two = program(x(), *states[0]), compiled(x(), *states[1])
        assert first_difference(freeze([one, *states[0]]), freeze([two, *states[1]]), exact=True) is None


def test_attributes_and_methods() -> None:
    """A method that counts, keeps a running mean and switches itself."""

    class Running:
        def __init__(self) -> None:
            self.count, self.mean, self.training = 0, kiln.zeros(4), True

        def __call__(self, t: Any) -> Any:
            self.count += 1
            if self.training:
                self.mean = self.mean * 0.9 + t.mean(0) * 0.1
            return t - self.mean

    one, two = Running(), Running()
    compiled = kiln.compile(two)
    method = kiln.compile(two.__call__)
    for step in range(7):
        one.training = two.training = step % 3 != 2
        run = compiled if step % 2 else method
        assert same_bits(to_array(one(x())), to_array(run(x())))
        assert one.count == two.count
        assert same_bits(to_array(one.mean), to_array(two.mean))


def test_default_arguments_and_keywords() -> None:
    """Mutable defaults, keyword-only and star arguments."""

    def program(t: Any, *rest: Any, seen: list[float] = [], factor: float = 2.0, **named: Any) -> Any:  # noqa: B006
        seen.append(factor)
        return t * factor + sum(rest) + named.get("bias", 0) + len(seen)

    compiled = kiln.compile(program)
    for kwargs in ({}, {"factor": 3.0}, {"bias": 1.0}, {}):
        expected = values(program(x(), 1, 2, **kwargs))
        program.__kwdefaults__["seen"].pop()
        assert values(compiled(x(), 1, 2, **kwargs)) == expected


class Pair(NamedTuple):
    """Two tensors and a word."""

    left: Any
    right: Any
    word: str


def test_containers_go_in_and_out() -> None:
    """None, strings, dicts, nested lists and named tuples, as arguments and results."""

    def program(pair: Pair, more: dict[str, list[Any]], nothing: None) -> Any:
        assert nothing is None
        total = pair.left * pair.right
        return Pair(total, more["a"][0] + 1, pair.word.upper()), {"n": [total, None, (more["b"],)]}

    check_same(program, lambda: (Pair(x(), x(), "word"), {"a": [x()], "b": ["text"]}, None))


@pytest.mark.parametrize("kind", ["lambda", "partial", "decorated", "method", "exec", "builtin"])
def test_kinds_of_callables(kind: str) -> None:
    """Whatever can be called can be compiled, with or without source."""

    def decorator(f: Any) -> Any:
        @functools.wraps(f)
        def wrapped(*args: Any) -> Any:
            return f(*args) + 1

        return wrapped

    class Holder:
        def method(self, t: Any) -> Any:
            return t * 2

    space: dict[str, Any] = {}
    exec("def f(t):\n    return t * 2\n", space)
    fn: Any = {
        "lambda": lambda t: t * 2,
        "partial": functools.partial(lambda k, t: t * k, 3),
        "decorated": decorator(lambda t: t * 2),
        "method": Holder().method,
        "exec": space["f"],
        "builtin": kiln.tanh,
    }[kind]
    both(fn, (x,), (x,), (x,))


def test_the_wrapper_looks_like_the_function() -> None:
    """Name and documentation are kept, and compile works as a decorator, bare and with options."""
    if not kiln.is_kiln:
        pytest.skip("the stand-in is plain")

    @kiln.compile
    def program(t: Any) -> Any:
        """What it does."""
        return t * 2

    assert (program.__name__, program.__doc__) == ("program", "What it does.")
    assert values(program(tensor(1))) == [2.0]


@pytest.mark.parametrize("name", ["class_", "it's", 'quo"te', "new\nline", "x" * 10_000, "größe", "a b", ""])
def test_odd_names(name: str) -> None:
    """A function's name never reaches generated code."""

    def program(t: Any) -> Any:
        return t * 2 + 1

    program.__name__ = program.__qualname__ = name
    both(program, (x,), (x,), (x,))
    assert isinstance(kiln.compile(program).explain(), str)


# -- effects and control ---------------------------------------------------------------------------


def test_print_inside() -> None:
    """Printing a tensor prints its values, at its line, in order."""

    def program(t: Any) -> Any:
        print("before")
        y = t * 2
        print(y)
        print(f"{y.sum().item():.3f}")
        return y + 1

    outputs = []
    for run in (program, *[recorded(program)] * 3):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run(x())
        outputs.append(out.getvalue())
    assert len(set(outputs)) == 1
    assert outputs[0].startswith("before\ntensor(")


def test_branches_on_values() -> None:
    """Each side is right whenever it is taken, also the first time after many of the other."""

    def program(t: Any) -> Any:
        if t.sum() > 0:
            return t * 2
        if (t < -1).any():
            return t - 1
        while t.sum().item() < 0:
            t = t * 0.5 + 0.25
        return t

    makers = [lambda s=s: normal(2, 2, seed=s) for s in range(6)]
    both(program, *[(m,) for m in makers * 2])


def test_exceptions_inside() -> None:
    """Caught ones steer, uncaught ones leave with eager's type and traceback, finally and with run."""

    def program(t: Any, kind: str, log: list[str]) -> Any:
        y = t * 2
        with contextlib.suppress(KeyError):
            raise KeyError
        try:
            if kind == "python":
                raise ValueError("mine")
            if kind == "tensor":
                y + kiln.ones(99)
            assert kind != "assert", "mine"
        except RuntimeError:
            y = y + 1
        finally:
            log.append(kind)
        return y

    check_same(program, lambda: (x(), "none", []))
    check_same(program, lambda: (x(), "tensor", []))
    for kind, error in (("python", ValueError), ("assert", AssertionError)):
        log: list[str] = []
        with pytest.raises(error, match="mine") as caught:
            recorded(program)(x(), kind, log)
        assert log == [kind]
        assert any(entry.name == "program" for entry in caught.traceback)


def test_libraries_inside() -> None:
    """NumPy on a value, sorting by values, time: whatever Python can do."""

    def program(t: Any) -> Any:
        order = sorted(range(3), key=lambda i: t[i].sum().item())
        mean = float(np.median(t.numpy()))
        return kiln.cat([t[i : i + 1] for i in order], 0) - mean, order

    check_same(program, lambda: (x(),))


def test_trees() -> None:
    """A structure that is new at every call gives the same bits and does not slow down without end."""

    def fold(node: Any, w: Any) -> Any:
        if not isinstance(node, tuple):
            return node
        return kiln.tanh(kiln.cat([fold(node[0], w), fold(node[1], w)]) @ w)

    def tree(rng: np.random.Generator, depth: int) -> Any:
        if depth == 0 or rng.random() < 0.3:
            return kiln.from_numpy(rng.normal(size=4).astype(np.float32))
        return tree(rng, depth - 1), tree(rng, depth - 1)

    compiled, w = kiln.compile(fold), normal(8, 4)
    for seed in range(20):
        one, two = (f(tree(np.random.default_rng(seed), 4), w) for f in (fold, compiled))
        assert same_bits(to_array(one), to_array(two))


def test_many_ops_in_one_region() -> None:
    """A region of 10 000 different ops."""

    def program(t: Any) -> Any:
        for k in range(2500):
            t = (kiln.tanh(t) * (1 + k * 1e-4) + t.sum()) * 0.5
        return t

    check_same(program, lambda: (x(),), calls=2)


# -- what changes between calls --------------------------------------------------------------------


def test_shapes_change_at_every_call() -> None:
    """Sizes, ranks and dtypes that are new each time."""

    def program(t: Any) -> Any:
        return (t * 2 + t.sum()).reshape(-1)

    calls = [(lambda n=n: normal(n, n % 3 + 1),) for n in (3, 3, 4, 1, 0, 5, 2, 7)]
    calls += [(lambda: normal(2, 3, 4),), (lambda: normal(5),), (lambda: kiln.tensor(2.5),)]
    calls += [
        (lambda d=d: normal(3, 2).to(d),) for d in (kiln.float64, kiln.float16, kiln.int64, kiln.float32)
    ]
    both(program, *calls, *calls)


def test_layouts_change_between_calls() -> None:
    """Contiguous, transposed, strided and expanded operands of one shape."""

    def program(t: Any) -> Any:
        y = kiln.softmax(t * 2, 1)
        return y, y.t().sum(1), t.reshape(-1)[3:]

    makers: list[Callable[[], Any]] = [
        lambda: normal(4, 4), lambda: normal(4, 4).t(), lambda: normal(4, 8)[:, ::2],
        lambda: normal(1, 4).expand(4, 4), lambda: normal(6, 4)[1:5],
    ]  # fmt: skip
    both(program, *[(m,) for m in makers * 3])


def test_expanded_inputs_of_one_element_and_of_more() -> None:
    """A view that repeats a single element is not one that repeats a row, though both look expanded."""
    makers: list[Callable[[], Any]] = [
        lambda: normal(1).expand(3, 4), lambda: normal(4).expand(3, 4), lambda: kiln.tensor(2.5).expand(3, 4),
        lambda: normal(1, 4)[:, 1:2].expand(3, 4), lambda: normal(3).expand(3, 3),
    ]  # fmt: skip
    both(lambda t: (t * 2, t.sum(0)), *[(m,) for m in makers * 3])


def test_an_input_is_returned() -> None:
    """Results that are arguments, views of them, or each other keep their identity and memory."""

    def program(t: Any) -> Any:
        y = t * 2
        return t, t[0], y, y, y[1:]

    for run in (program, *[recorded(program)] * 3):
        t = x()
        same, row, one, two, tail = run(t)
        assert same is t
        assert one is two
        t[0, 0] = 99
        one[1, 0] = -99
        assert values(row)[0] == 99.0
        assert values(tail)[0][0] == -99.0


def test_two_functions_and_two_wrappers() -> None:
    """Regions with one structure share nothing that shows."""
    one, two, three = (
        kiln.compile(f) for f in (lambda t: t * 2 + 1, lambda t: t * 3 + 5, lambda t: t * 2 + 1)
    )
    for _ in range(4):
        assert [values(f(tensor(1, 2))) for f in (one, two, three)] == [[3.0, 5.0], [8.0, 11.0], [3.0, 5.0]]


def test_threads() -> None:
    """One compiled function called from several threads, with gradients."""

    def program(t: Any) -> Any:
        y = kiln.tanh(t * t).sum()
        y.backward()
        return y, t.grad

    compiled = kiln.compile(program)
    expected = {n: freeze(program(normal(n + 1, 5).requires_grad_())) for n in range(4)}
    wrong: list[str] = []

    def work(n: int) -> None:
        for _ in range(30):
            got = freeze(compiled(normal(n + 1, 5).requires_grad_()))
            found = first_difference(expected[n], got, exact=True)
            if found is not None:
                wrong.append(found)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    assert not wrong


# -- explain, profile, and what compiling costs ----------------------------------------------------


@needs_kiln
class TestExplain:
    """`explain` says in plain words what was captured, what ended a region, and what was compiled."""

    def test_before_and_after_calls(self) -> None:
        compiled = kiln.compile(lambda t: kiln.tanh(t * 2) + 1)
        assert isinstance(compiled.explain(), str)
        for _ in range(3):
            compiled(x())
        text = compiled.explain()
        assert "tanh" in text
        assert "mul" in text

    def test_the_line_that_read_a_value(self) -> None:
        def program(t: Any) -> Any:
            y = t * 2
            if y.sum().item() > 0:  # the reading line
                return y + 1
            return y - 1

        compiled = kiln.compile(program)
        for _ in range(3):
            compiled(x())
        line = program.__code__.co_firstlineno + 2
        text = compiled.explain()
        assert "test_compile.py" in text
        assert str(line) in text

    def test_new_structures_are_listed(self) -> None:
        compiled = kiln.compile(lambda t: t.sum(0) if t.shape[0] > 2 else t * 2)
        for n in (3, 3, 1, 1):
            compiled(normal(n, 2))
        text = compiled.explain()
        assert "sum" in text
        assert "mul" in text


@needs("profile")
def test_profile_names_ops() -> None:
    """kiln.profile lists where the time went."""
    if not kiln.is_kiln:
        pytest.skip("the stand-in's profile is empty")
    with kiln.profile() as p:
        kiln.tanh(x()) @ x().t()
    text = str(p)
    assert repr(p) == text  # what a notebook shows
    assert "tanh" in text
    assert "matmul" in text


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Programs run alone, without the comparison that every other test has switched on."""
    from kiln import _core

    before = _core.set_check(False)
    yield
    _core.set_check(before)


@needs_kiln
def test_check_mode_is_on() -> None:
    """The suite compares what programs give with what their ops give."""
    from kiln import _core

    assert _core.set_check(True)


@needs_kiln
@pytest.mark.usefixtures("unchecked")
def test_a_region_that_does_not_pay_is_switched_off() -> None:
    """Where recording one tiny op costs more than it saves, the region says so and stops recording."""
    compiled = kiln.compile(lambda t: t + 1)
    for _ in range(40):
        assert values(compiled(tensor(1))) == [2.0]
    stats = compiled.stats()
    if stats["off"]:
        assert stats["runs"] + stats["replays"] < 40
        assert "switched off" in compiled.explain()


@needs_kiln
def test_a_step_is_one_program() -> None:
    """A training step in which nothing is read is one region with one program."""
    w = normal(32, 32).requires_grad_()

    def step(t: Any) -> Any:
        w.grad = None
        kiln.tanh(t @ w).sum().backward()
        with kiln.no_grad():
            w.sub_(w.grad * 1e-3)

    run = kiln.compile(step, wait=True)
    for _ in range(5):
        run(normal(8, 32))
    stats = run.stats()
    assert (stats["programs"], stats["runs"]) == (1, 5)


@needs_kiln
def test_a_step_in_double_is_one_program() -> None:
    """A number of the dtype that it fills memory of is an array from there on: backward's first gradient."""
    w = kiln.ones(3, dtype=kiln.float64, requires_grad=True)

    def step() -> Any:
        w.grad = None
        (0.5 * (w * w).sum()).backward()
        return w.grad

    run = kiln.compile(step, wait=True)
    assert [run().tolist() for _ in range(2)] == [[1.0] * 3] * 2
    assert (run.stats()["programs"], run.stats()["runs"]) == (1, 2)


@needs_kiln
def test_shifts_in_time_are_one_program() -> None:
    """A length put together of two, n + (T - n), and multiplied out by a product is known to be T."""

    def mixed(x: Any, w: Any) -> Any:
        for n in (1, 2):
            past = kiln.cat([kiln.zeros(x.shape[0], n, x.shape[2]), x[:, :-n]], 1)
            x = x + kiln.tanh(kiln.cat([x, past], -1) @ w)
        return x

    run = kiln.compile(mixed, wait=True)
    for t in (5, 9):
        assert run(normal(2, t, 3), normal(6, 3)).shape == (2, t, 3)
    assert (run.stats()["programs"], run.stats()["runs"]) == (1, 2)


@needs_kiln
def test_positions_from_arange_do_not_end_a_recording() -> None:
    """They are there when an index is looked at: a transformer's step is one program, and still checked."""
    table = kiln.nn.Embedding(6, 2)

    def embedded(t: Any) -> Any:
        return table(kiln.arange(t.shape[1]).unsqueeze(0)) + t.unsqueeze(-1)

    run = kiln.compile(embedded, wait=True)
    for n in (3, 5):
        assert run(normal(2, n)).shape == (2, n, 2)
    assert (run.stats()["programs"], run.stats()["runs"]) == (1, 2)
    with pytest.raises(IndexError, match="out of range"):
        run(normal(2, 7))


@needs_kiln
def test_programs_are_bounded() -> None:
    """Ten thousand structures do not keep ten thousand programs."""
    gc.collect()
    compiled = kiln.compile(
        lambda t, n: functools.reduce(lambda a, k: a * 2 if n >> k & 1 else a + 1, range(12), t)
    )
    for n in range(600):
        for _ in range(2 if n % 100 == 0 else 1):  # some are seen again, and compiled
            assert compiled(tensor(1), n).shape == (1,)
    stats = compiled.stats()
    assert stats["programs"] <= 256
    assert stats["programs"] + stats["forgotten"] == 600
    assert "forgotten" in compiled.explain()


@needs_kiln
def test_a_region_that_never_repeats_is_switched_off() -> None:
    """Where every call records something new, recording stops, and explain() says why."""
    gc.collect()
    compiled = kiln.compile(
        lambda t, n: functools.reduce(lambda a, k: a * 2 if n >> k & 1 else a + 1, range(11), t)
    )
    expected = [
        functools.reduce(lambda a, k: a * 2 if n >> k & 1 else a + 1, range(11), 1) for n in range(1400)
    ]
    assert [compiled(tensor(1), n).item() for n in range(1400)] == expected
    stats = compiled.stats()
    assert stats["off"]
    assert stats["runs"] + stats["replays"] < 1400
    assert "switched off: hardly any recording was seen again" in compiled.explain()


def test_rows_of_a_product_go_to_a_part_of_a_tensor() -> None:
    """A product seen in another shape and written where its rows lie apart: a cache, filled in place."""

    def program(t: Any, w: Any) -> Any:
        cache = kiln.zeros(1, 2, 3, 2)
        for k in range(3):
            cache[:, :, k : k + 1] = (t[k : k + 1] @ w).view(1, 1, 2, 2).transpose(1, 2)
        return cache

    both(program, *[(x, lambda: normal(4, 4))] * 3)
