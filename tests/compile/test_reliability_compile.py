"""Compiled functions at their limits: arguments and state of any kind that change between calls, numbers that
no longer fit, what runs out, sources that are gone. And the check mode, which others rely on, can fail.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest
from backend import WAYS, check_same, kiln, needs_kiln, normal, outcome, tensor, values

from kiln.testing.compare import first_difference, freeze, same_bits, to_array

# -- arguments and state -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    """Tensors, a number and another one of its kind."""

    inputs: Any
    weight: float = 1.0
    more: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    """What cannot be assigned to."""

    inputs: Any


def test_dataclasses() -> None:
    """Their fields are read and assigned, and new ones returned, as in eager Python."""

    def program(batch: Batch, frozen: Frozen) -> Any:
        batch.inputs.add_(frozen.inputs)
        batch.weight += 1
        batch.more = Batch(batch.inputs * batch.weight)
        return dataclasses.replace(frozen, inputs=batch.more.inputs + 1)

    compiled = kiln.compile(program)
    one, two = Batch(tensor(1, 2)), Batch(tensor(1, 2))
    for _ in range(4):
        for run, batch in ((program, one), (compiled, two)):
            result = run(batch, Frozen(tensor(3, 4)))
            assert isinstance(result, Frozen)
            assert values(result.inputs) == [v + 1 for v in values(batch.more.inputs)]
        assert values(one.inputs) == values(two.inputs)
        assert one.weight == two.weight
        assert values(one.more.inputs) == values(two.more.inputs)


class Net(kiln.nn.Module):  # type: ignore[misc]
    """A layer, and a buffer that forward reads and replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = kiln.nn.Linear(3, 3)
        with kiln.no_grad():
            self.layer.weight.copy_(normal(3, 3))
            self.layer.bias.copy_(normal(3))
        self.register_buffer("mean", kiln.zeros(3))

    def forward(self, x: Any) -> Any:
        y = self.layer(x) - self.mean
        if self.training:
            self.mean = self.mean * 0.5 + y.detach().mean(0) * 0.5
        return kiln.tanh(y)


def _double(module: Any, args: Any, output: Any) -> Any:
    return output * 2


def _shift(module: Any, args: Any) -> Any:
    return (args[0] + 1,)


# what happens to a module between two calls, and what is undone of it
CHANGES: list[Any] = [
    lambda net, state: None,
    lambda net, state: state.append(net.register_forward_hook(_double)),
    lambda net, state: state.append(net.layer.register_forward_pre_hook(_shift)),
    lambda net, state: net.mean.fill_(3.0),
    lambda net, state: state.pop().remove(),
    lambda net, state: setattr(net, "mean", normal(3, seed=5)),
    lambda net, state: net.eval(),
    lambda net, state: setattr(net.layer, "bias", None),
    lambda net, state: state.pop().remove(),
    lambda net, state: setattr(net.layer, "weight", kiln.nn.Parameter(normal(3, 3, seed=9))),
    lambda net, state: net.train(),
    lambda net, state: net.layer.weight.requires_grad_(False),
    lambda net, state: setattr(net, "layer", kiln.nn.Identity()),
]


def test_a_module_changes_between_calls() -> None:
    """Buffers, hooks, parameters, layers and modes: each call sees the module as it is now."""
    one, two = Net(), Net()
    compiled, states = kiln.compile(two), ([], [])
    for change in CHANGES:
        change(one, states[0])
        change(two, states[1])
        for call in range(3):
            results = []
            for net, run in ((one, one), (two, compiled)):
                x = normal(4, 3, seed=call).requires_grad_()
                y = run(x)
                y.sum().backward()
                results.append([y, x.grad, net.mean, [p.grad for p in net.parameters()]])
            found = first_difference(freeze(results[0]), freeze(results[1]), exact=True)
            assert found is None, (CHANGES.index(change), call, found)


def test_a_source_that_is_gone(tmp_path: Path) -> None:
    """A function whose file was changed or removed runs, explains itself, and names lines in its errors."""
    path = tmp_path / "vanishing.py"
    path.write_text("def program(x):\n    y = x * 2\n    return (y + 1).sum() if y[0] > 0 else y\n")
    spec = importlib.util.spec_from_file_location("vanishing", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compiled = kiln.compile(module.program)
    assert values(compiled(tensor(1, 2))) == 8.0
    path.write_text("nothing of the kind")
    assert values(compiled(tensor(1, 2))) == 8.0
    path.unlink()
    for _ in range(3):
        assert values(compiled(tensor(1, 2))) == 8.0
        assert values(compiled(tensor(-1, 2))) == [-2.0, 4.0]
    if kiln.is_kiln:
        assert "vanishing.py:3" in compiled.explain()
        with pytest.raises(RuntimeError, match="must match"):
            kiln.compile(lambda x: module.program(x) + kiln.ones(3))(tensor(-1, 2))


# -- numbers that were right once ----------------------------------------------------------------------------

# program(x, number): two numbers that it takes, one that it does not
RANGES: dict[str, tuple[Any, tuple[Any, Any, Any]]] = {
    "dropout": (lambda x, n: kiln.nn.functional.dropout(x, n), (0.5, 0.25, 1.5)),
    "fill_": (lambda x, n: x.to(kiln.int8).fill_(n), (5, -128, 128)),
    "full": (lambda x, n: kiln.full((2,), n, dtype=kiln.uint8), (5, 255, 256)),
    "item": (lambda x, n: x.to(kiln.int8).__setitem__(0, n), (5, 6, 300)),
    "tensor": (lambda x, n: kiln.tensor([n], dtype=kiln.int16), (5, 6, 40000)),
    "64 bits": (lambda x, n: x.long() + n, (1, 2, 2**63)),
    "arange": (lambda x, n: kiln.arange(0, 5, n), (1, 2, 0)),
    "sign of a step": (lambda x, n: kiln.arange(0, 5, n), (1, 2, -1)),
    "linspace": (lambda x, n: kiln.linspace(0, 5, n), (1, 2, -1)),
    "index": (lambda x, n: x[n], (0, -4, 4)),
    "slice": (lambda x, n: x[::n], (1, 2, 0)),
    "reshape": (lambda x, n: x.reshape(n, -1), (2, 4, 3)),
    "expand": (lambda x, n: x[:1].expand(n), (4, 3, -3)),
    "narrow": (lambda x, n: x.narrow(0, 1, n), (1, 3, 4)),
    "dim": (lambda x, n: x.sum(n), (0, -1, 1)),
    "sizes": (lambda x, n: kiln.ones(n), (4, 2, -1)),
    "too large": (lambda x, n: kiln.empty(n, n), (4, 2, 2**40)),
    "label_smoothing": (
        lambda x, n: kiln.nn.functional.cross_entropy(x[None], kiln.tensor([0]), label_smoothing=n),
        (0.1, 0.2, 1.5),
    ),
    "label": (lambda x, n: kiln.nn.functional.cross_entropy(x[None], kiln.tensor([n])), (0, 3, 4)),
    "normal": (lambda x, n: kiln.normal(0.0, n, (3,)), (0.1, 0.2, -1.0)),
    "bernoulli": (lambda x, n: kiln.zeros(3).bernoulli_(n), (0.1, 0.2, 1.5)),
    "uniform": (lambda x, n: kiln.zeros(3).uniform_(0, n), (0.1, 0.2, -1.5)),
    "randint": (lambda x, n: kiln.randint(0, n, (3,)), (2, 3, 0)),
    "classes": (lambda x, n: kiln.nn.functional.one_hot(kiln.tensor([0, 2]), n), (3, 4, 2)),
    "division": (lambda x, n: kiln.tensor([7, 9]) // n, (3, 4, 0)),
    "exponent": (lambda x, n: kiln.tensor([7, 9]) ** n, (3, 4, -1)),
    "norm": (lambda x, n: kiln.nn.functional.layer_norm(x.reshape(1, -1), (n,)), (4, 4, 3)),
}


@pytest.mark.parametrize("name", RANGES)
def test_numbers_are_checked_at_every_call(name: str) -> None:
    """A number that no longer fits raises what eager raises, also where there is a program for its call."""
    program, (first, second, wrong) = RANGES[name]
    runs = (program, kiln.compile(program), kiln.compile(program, wait=True))
    for number in (first, first, first, second, wrong, first, wrong):
        found = []
        for run in runs:
            kiln.manual_seed(4)
            found.append(outcome(run, tensor(1, 2, 3, 4), number))
        raised = isinstance(found[0], dict) and "raised" in found[0]
        assert raised == (number == wrong and type(number) is type(wrong))
        for other in found[1:]:
            assert first_difference(found[0], other, exact=True) is None, number


@needs_kiln
def test_one_program_for_all_sizes() -> None:
    """Sizes, 0 included, share a program; a dim that becomes 1 costs one more, and no more than one."""
    run = kiln.compile(lambda x, y: ((x * y + 1).sum(0), x - y), wait=True)
    programs = []
    for shape in [(3, 4), (5, 4), (0, 4), (4, 4), (7, 0), (1, 4), (1, 9), (6, 1), (0, 1), (1, 1), (2, 2)]:
        run(normal(*shape), normal(*shape, seed=1))
        programs.append(run.stats()["programs"])
    assert programs == [1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert run.stats()["replays"] == 0


@needs_kiln
def test_a_wider_live_set_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A value kept now and then makes one more program, which serves the calls that drop it too."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))  # where no test has left these programs
    kept: list[Any] = []

    def program(x: Any, keep: bool) -> Any:
        h = kiln.tanh(x)
        if keep:
            kept.append(h)
        return (h * 2 - x).exp().sigmoid()  # no other test's program: this one must not be on disk

    run = kiln.compile(program)
    for call in range(9):
        run(normal(5, seed=call), call % 3 == 2)
    stats = run.stats()
    assert (stats["compiles"], stats["runs"], stats["replays"]) == (2, 8, 1)  # op by op at first sight
    for call, h in zip((2, 5, 8), kept, strict=True):
        assert same_bits(to_array(h), to_array(kiln.tanh(normal(5, seed=call))))


# -- what runs out -----------------------------------------------------------------------------------------


@pytest.mark.op_by_op
@needs_kiln
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_flush_that_fails_tells_of_the_users_error(error: type[BaseException]) -> None:
    """What fails while a region is left by an exception is chained to that exception."""
    kept: list[Any] = []

    def program(x: Any) -> None:
        kept.append(x.expand(2**45, 2) * 2)
        raise error("mine")

    run = kiln.compile(program)
    for _ in range(3):
        with pytest.raises(MemoryError) as caught:
            run(tensor(1, 2))
        assert isinstance(caught.value.__cause__, error)
        with pytest.raises(RuntimeError, match="never computed"):
            values(kept.pop())


@pytest.mark.op_by_op
@needs_kiln
def test_a_program_outlives_a_call_without_memory() -> None:
    """A call that found no memory does not cost the recording its program."""
    run = kiln.compile(lambda x, n: x.expand(n, 2) * 2, wait=True)
    for n in (3, 2**45, 4, 2**45, 5):
        if n > 5:
            with pytest.raises(MemoryError):
                run(tensor(1, 2), n)
            continue
        assert values(run(tensor(1, 2), n)) == [[2.0, 4.0]] * n
    assert run.stats()["runs"] == 3
    assert "failed" not in run.explain()


@needs_kiln
def test_pending_work_is_bounded_in_bytes() -> None:
    """What only the recording holds is run before it would need more than 1 GiB."""

    def program(count: int) -> Any:
        total = kiln.zeros(())
        for k in range(count):
            total = total + kiln.full((2**24,), float(k)).sum()  # 64 MiB
        return total

    run = kiln.compile(program)
    assert run(20).item() == sum(range(20)) * 2.0**24
    assert "held too many bytes, 1 times" in run.explain()


@needs_kiln
def test_pending_work_is_bounded_in_ops() -> None:
    """A loop without end does not record without end."""

    def program(x: Any) -> Any:
        for _ in range(10_500):
            x = x * 0.999
        return x

    run, x = kiln.compile(program), tensor(1, 2)
    assert same_bits(to_array(run(x)), to_array(program(x)))
    assert "grew to its bound, 1 times" in run.explain()


@needs_kiln
def test_bytes_that_others_hold_do_not_count() -> None:
    """Arguments of more than the bound are no reason to run anything."""
    inputs = [kiln.empty(2**26) for _ in range(5)]  # 1.25 GiB of address space, hardly touched

    def program(inputs: list[Any]) -> Any:
        return sum(x[:2] * 0 for x in inputs)

    run = kiln.compile(program, wait=True)
    run(inputs)
    assert "held too many bytes" not in run.explain()
    assert run.stats()["programs"] == 1


@WAYS
def test_saving_inside(way: Any) -> None:
    """A file is written with the values of its line."""

    def program(w: Any) -> Any:
        w.add_(1)
        file = io.BytesIO()
        kiln.save({"w": w, "twice": w * 2}, file)
        w.zero_()
        file.seek(0)
        return kiln.load(file)

    run = way(program)
    for _ in range(3):
        w = tensor(1, 2)
        loaded = run(w)
        assert [values(loaded["w"]), values(loaded["twice"])] == [[2.0, 3.0], [4.0, 6.0]]
        assert values(w) == [0.0, 0.0]


# -- out= and overlap ----------------------------------------------------------------------------------------

# what is written into an argument x of 6 elements; what x is afterwards, None where that is refused
OUT: dict[str, tuple[Any, Any]] = {
    "itself": (lambda x: kiln.add(x, x, out=x), [0, 2, 4, 6, 8, 10]),
    "shifted": (lambda x: kiln.add(x[1:], 1, out=x[:-1]), None),
    "partly": (lambda x: kiln.mul(x[:4], 2, out=x[2:]), None),
    "repeated": (lambda x: kiln.add(x[:3], 1, out=x[:1].expand(3)), None),
    "turned": (lambda x: kiln.neg(x[:4].view(2, 2).t(), out=x[:4].view(2, 2)), None),
    "a sum into its operand": (lambda x: kiln.sum(x.view(2, 3), 0, out=x[1:4]), [0, 3, 5, 7, 4, 5]),
    "a product into its factor": (
        lambda x: kiln.matmul(x[:4].view(2, 2), x[:4].view(2, 2), out=x[2:].view(2, 2)), [0, 1, 2, 3, 6, 11],
    ),
    "interleaved": (lambda x: kiln.add(x[::2], 10, out=x[1::2]), [0, 10, 2, 12, 4, 14]),
}  # fmt: skip


@needs_kiln
@WAYS
@pytest.mark.parametrize("name", OUT)
def test_out_that_overlaps(way: Any, name: str) -> None:
    """A target that overlaps an operand otherwise than exactly is refused, or everything is read first."""
    write, expected = OUT[name]
    run = way(write)
    for _ in range(3):
        x = kiln.arange(6.0)
        if expected is None:
            with pytest.raises(RuntimeError, match="single memory"):
                run(x)
            expected_now: Any = [0, 1, 2, 3, 4, 5]
        else:
            run(x)
            expected_now = expected
        assert values(x) == expected_now


# -- gradients, recorded -------------------------------------------------------------------------------------


def test_a_hook_that_writes_into_its_gradient() -> None:
    """A gradient that branches share is not changed for the others; the given one is the caller's own."""

    def branches(x: Any) -> Any:
        a, b = x * 1, x * 1
        a.register_hook(lambda g: g.clone().mul_(10))
        ((a + b) * 2).backward(kiln.ones(2))
        return x.grad

    def given(x: Any, g: Any) -> Any:
        y = x * 1
        y.register_hook(lambda g: g.mul_(10))
        y.backward(g)
        return x.grad

    assert check_same(branches, lambda: (tensor(1, 2, grad=True),)) is not None
    assert values(kiln.compile(branches)(tensor(1, 2, grad=True))) == [22.0, 22.0]
    check_same(given, lambda: (tensor(1, 2, grad=True), tensor(1, 3)))


def test_one_part_of_a_split() -> None:
    """A part that nobody used has no gradient, not zeros that meet an infinity."""

    def program(x: Any) -> Any:
        first, second = (x * x).split(2)
        (1 / first).sum()
        second.sum().backward()
        return x.grad, first

    check_same(program, lambda: (tensor(0, 1, 2, 3, grad=True),))
    assert values(program(tensor(0, 1, 2, 3, grad=True))[0]) == [0.0, 0.0, 4.0, 6.0]


@needs_kiln
def test_a_captured_function_may_not_branch_on_a_value() -> None:
    """An op's body sees numbers as symbols: which of them are 0 now says nothing."""
    bodies = (
        lambda x, a: x if a > 0 else -x,
        lambda x, a: x * (1 if a else 2),
        lambda x, a: x if x > a else a,
    )
    for body in bodies:
        with pytest.raises(TypeError, match="branch"):
            kiln.pointwise(body)(tensor(1, 2), 0.5)


# -- the check mode -----------------------------------------------------------------------------------------


@needs_kiln
@pytest.mark.parametrize("what", ["result", "write"])
def test_the_check_mode_can_fail(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that computes something else than its ops is noticed, and the ops' values stay."""
    from kiln.capture import regions

    call = regions.Builder.call

    def swapped(self: Any, function: Any, hidden: Any, writes: Any, args: list[Any], outs: Any) -> None:
        call(self, function, hidden, writes, args[::-1], outs)

    def program(x: Any, y: Any) -> Any:
        return x.sub_(y) if what == "write" else x - y

    run = kiln.compile(program)
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))  # where the program is not kept
    monkeypatch.setattr(regions.Builder, "call", swapped)
    assert values(run(tensor(1, 2), tensor(3, 5))) == [-2.0, -3.0]  # op by op
    x = tensor(1, 2)
    with pytest.raises(Exception, match="left other bits"):
        run(x, tensor(3, 5))
    assert values(x) == ([-2.0, -3.0] if what == "write" else [1.0, 2.0])
    monkeypatch.undo()
    assert same_bits(to_array(kiln.compile(program)(tensor(1, 2), tensor(3, 5))), to_array(tensor(-2, -3)))
