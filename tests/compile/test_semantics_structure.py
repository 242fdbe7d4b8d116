"""Structure, cost and environment, rules 20 to 25: what a recording may depend on, and what surrounds it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backend import WAYS, check_same, kiln, needs, needs_kiln, normal, tensor, torch, values, where_supported

from kiln.testing.compare import same_bits, to_array
from kiln.testing.random_programs import compiler_warnings


class TestFirstSteps:
    """Rule 20: a training step has one structure from its first call on."""

    @needs("optim.Adam", "nn.Linear")
    @pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
    def test_training_recorded_is_training_eager(self, name: str) -> None:
        def train(wrap: Any) -> tuple[list[float], list[Any]]:
            kiln.manual_seed(3)
            net = kiln.nn.Sequential(kiln.nn.Linear(8, 16), kiln.nn.ReLU(), kiln.nn.Linear(16, 4))
            options = {"momentum": 0.9} if name == "SGD" else {}
            optimizer = getattr(kiln.optim, name)(net.parameters(), lr=0.05, **options)

            def step(x: Any, t: Any) -> Any:
                optimizer.zero_grad()
                loss = kiln.nn.functional.cross_entropy(net(x), t)
                loss.backward()
                optimizer.step()
                return loss

            run, losses = wrap(step), []
            for n in range(8):
                target = kiln.tensor(np.random.default_rng(n).integers(0, 4, 6).tolist())
                losses.append(run(normal(6, 8, seed=n), target).item())
            return losses, [to_array(p) for p in net.parameters()]

        losses, weights = train(lambda f: f)
        again, others = train(kiln.compile)
        assert losses == again
        assert all(same_bits(x, y) for x, y in zip(weights, others, strict=True))

    @needs_kiln
    def test_wait_compiles_at_first_sight(self) -> None:
        with where_supported():
            compiled = kiln.compile(lambda x: kiln.tanh(x) * 2, wait=True)
            assert same_bits(to_array(compiled(normal(4))), to_array(kiln.tanh(normal(4)) * 2))


class TestPrograms:
    """What eager can run, a program can: no recording is left to its ops."""

    @pytest.mark.parametrize("name", ["expanded outside", "made of a number", "viewed flat"])
    def test_sizes_that_become_one(self, name: str) -> None:
        """A size of 1 is known as such, however it came about."""

        def outside(n: int) -> Any:
            x = normal(7, seed=n)[:n]
            y = kiln.zeros(4)
            return y.copy_(x[0].expand(4)) + x.sum()

        def made(n: int) -> Any:
            x = kiln.full((n,), 2.5)
            return x.reshape(n, 1).expand(n, 3).reshape(-1).sum() + (x.expand(4) if n == 1 else x.sum())

        def flat(n: int) -> Any:
            x = normal(n, 3).reshape(-1)[:n]
            return x.expand(n) * 2, x.expand(5).t() if n == 1 else x

        program = {"expanded outside": outside, "made of a number": made, "viewed flat": flat}[name]
        compiled = kiln.compile(program)
        with compiler_warnings() as warnings:
            for n in (3, 3, 3, 1, 1, 1, 4, 4, 1):
                for x, y in zip(flatten(program(n)), flatten(compiled(n)), strict=True):
                    assert same_bits(to_array(x), to_array(y))
        assert not warnings

    @needs_kiln
    def test_arithmetic_on_numbers_alone(self) -> None:
        """What ops make of numbers alone is an array for the ops after it."""

        def program(x: Any, a: Any) -> Any:
            n, t = kiln.sub(a, 3), kiln.mul(a, 0.25)
            return x**n, x * t, n, t, kiln.eq(n, 4), n == 4

        check_same(program, lambda: (normal(3), 7))
        check_same(program, lambda: (normal(3), 2.5))

    def test_one_element_expanded(self) -> None:
        """An input that is one element of memory, seen through a view of many."""

        def program(x: Any, y: Any) -> Any:
            return x + y, y * 2

        compiled = kiln.compile(program)
        with compiler_warnings() as warnings:
            for n in (3, 3, 1, 1, 5):
                args = normal(4), normal(n)[:1].expand(4) if n != 1 else kiln.tensor([2.0]).expand(4)
                for x, y in zip(program(*args), compiled(*args), strict=True):
                    assert same_bits(to_array(x), to_array(y))
        assert not warnings


def flatten(found: Any) -> list[Any]:
    """The tensors of a result."""
    return list(found) if isinstance(found, tuple) else [found]


class TestModes:
    """Rule 22: a switch that changes a result is seen at the line that changed it."""

    def test_gradient_mode_inside(self) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            with kiln.no_grad():
                z = y * 3
                with kiln.enable_grad():
                    u = y * 4
            return y.requires_grad, z.requires_grad, u.requires_grad, z, u

        check_same(program, lambda: (normal(3).requires_grad_(),))
        assert program(normal(3).requires_grad_())[:3] == (True, False, True)

    def test_gradient_mode_around(self) -> None:
        compiled = kiln.compile(lambda x: x * 2)
        for wanted in (True, False, True, True, False):
            with kiln.set_grad_enabled(wanted):
                assert compiled(normal(3).requires_grad_()).requires_grad is wanted

    def test_requires_grad_changes_between_calls(self) -> None:
        compiled = kiln.compile(lambda x: (x * x).sum())
        for wanted in (False, True, True, False, True):
            x = normal(3)
            x.requires_grad_(wanted)
            y = compiled(x)
            assert y.requires_grad is wanted
            if wanted:
                y.backward()
                assert same_bits(to_array(x.grad), to_array(normal(3) * 2))

    @needs("set_default_dtype", "get_default_dtype")
    def test_default_dtype(self) -> None:
        def program() -> Any:
            return kiln.ones(2) * 2, kiln.tensor([1, 2]) / 2

        compiled, before = kiln.compile(program), kiln.get_default_dtype()
        try:
            for dtype in (kiln.float32, kiln.float64, kiln.float32, kiln.float64):
                kiln.set_default_dtype(dtype)
                assert [y.dtype for y in compiled()] == [y.dtype for y in program()] == [dtype, dtype]
        finally:
            kiln.set_default_dtype(before)

    @needs_kiln
    @pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is not installed")
    def test_another_library_flushes_denormals(self) -> None:
        def program(x: Any) -> Any:
            return x * 0.5, kiln.exp(x * 0 - 100.0)

        tiny = np.full(40, 2e-38, np.float32)
        expected = [to_array(y) for y in program(kiln.from_numpy(tiny))]
        assert all((e > 0).all() for e in expected)
        torch.set_flush_denormal(True)
        try:
            for run in (program, *[kiln.compile(program)] * 3):
                got = [to_array(y) for y in run(kiln.from_numpy(tiny))]
                assert all(
                    same_bits(x.view(np.uint32), y.view(np.uint32))
                    for x, y in zip(expected, got, strict=True)
                )
        finally:
            torch.set_flush_denormal(False)


class TestDataDependentShapes:
    """Rule 23: a shape that depends on data is known at its line."""

    @pytest.mark.parametrize("name", ["mask", "nonzero", "assign", "unique"])
    def test_sizes_from_values(self, name: str) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            if name == "assign":
                y[y > 0] = -1.0
                return y
            picked = {
                "mask": lambda: y[y > 0],
                "nonzero": lambda: (y > 0).nonzero(),
                "unique": lambda: y.unique(),
            }[name]()
            return picked + 1, picked.shape[0]

        with where_supported():
            try:
                program(normal(5))
            except AttributeError as error:
                pytest.skip(str(error))
            compiled = kiln.compile(program)
            for seed in range(6):
                one, two = program(normal(7, seed=seed)), compiled(normal(7, seed=seed))
                pairs = [(one, two)] if name == "assign" else [(one[0], two[0])]
                assert all(same_bits(to_array(a), to_array(b)) for a, b in pairs)


class TestSuspension:
    """Rule 24: generators, coroutines, nesting and fork."""

    @WAYS
    def test_generator(self, way: Any) -> None:
        def program(x: Any) -> Iterator[Any]:
            for k in range(3):
                x = x * 2
                yield x + k

        assert [values(y) for y in way(program)(tensor(1))] == [[2.0], [5.0], [10.0]]

    @WAYS
    def test_two_generators_interleaved(self, way: Any) -> None:
        def program(x: Any) -> Iterator[Any]:
            while True:
                x.add_(1)
                yield x * 2

        run = way(program)
        shared = tensor(0)
        one, two = run(shared), run(shared)
        assert [values(next(g)) for g in (one, two, one, one, two)] == [[2.0], [4.0], [6.0], [8.0], [10.0]]
        one.close()
        assert values(shared) == [5.0]

    @WAYS
    def test_a_generator_driven_from_inside(self, way: Any) -> None:
        def source(x: Any) -> Iterator[Any]:
            for k in range(3):
                yield x * k

        def program(x: Any) -> Any:
            total = kiln.zeros(2)
            for y in source(x):
                total = total + y
            return total

        run = way(program)
        assert [values(run(tensor(1, 2))) for _ in range(3)] == [[3.0, 6.0]] * 3

    @WAYS
    def test_coroutine(self, way: Any) -> None:
        async def program(x: Any) -> Any:
            y = x * 2
            await asyncio.sleep(0)
            return y + 1

        async def main() -> list[Any]:
            run = way(program)
            return [values(y) for y in await asyncio.gather(run(tensor(1)), run(tensor(2)))]

        assert asyncio.run(main()) == [[3.0], [5.0]]

    def test_compile_inside_compile(self) -> None:
        inner = kiln.compile(lambda x: kiln.tanh(x) + 1)

        def program(x: Any) -> Any:
            y = inner(x) * 2
            if y.sum().item() > 0:
                y = inner(y)
            return inner(y) - x

        check_same(program, lambda: (normal(6),), calls=4)

    def test_recursion(self) -> None:
        def down(x: Any, depth: int) -> Any:
            return kiln.tanh(x) + compiled(x * 0.5, depth - 1) if depth else x

        compiled = kiln.compile(down)

        def plain(x: Any, depth: int) -> Any:
            return kiln.tanh(x) + plain(x * 0.5, depth - 1) if depth else x

        for depth in (3, 3, 5, 0, 3):
            assert same_bits(to_array(plain(normal(4), depth)), to_array(compiled(normal(4), depth)))


def _child(queue: Any, x: Any, fn: Any) -> None:
    """In a forked process: use a tensor and a compiled function of the parent."""
    queue.put([float(v) for v in values(fn(x)) + values(kiln.tanh(x))])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
class TestFork:
    """Rule 24: a child sees values, not a half-run recording, and may compute and compile."""

    @pytest.mark.parametrize("moment", ["before", "after", "inside"])
    def test_fork(self, moment: str) -> None:
        if not kiln.is_kiln:
            pytest.skip("PyTorch's own pool does not survive a fork")
        context = multiprocessing.get_context("fork")
        queue: Any = context.Queue()
        fn = kiln.compile(lambda x: x * 3 + 1)
        x = tensor(1, 2)
        if moment == "after":
            kiln.set_num_threads(2)
            values(kiln.ones(1_000_000) * 2)
            values(fn(x))

        def program(x: Any) -> Any:
            y = x * 2 if moment == "inside" else x * 1
            child = context.Process(target=_child, args=(queue, y, fn))
            child.start()
            got = queue.get(timeout=60)
            child.join(60)
            assert child.exitcode == 0
            return got, y

        run = kiln.compile(program) if moment == "inside" else program
        got, y = run(x)
        assert got[:2] == [3 * v + 1 for v in values(y)]
        assert np.allclose(got[2:], np.tanh(values(y)))

    def test_fork_while_a_thread_computes(self) -> None:
        if not kiln.is_kiln:
            pytest.skip("PyTorch's own pool does not survive a fork")
        stop = threading.Event()

        def busy() -> None:
            n = 1
            while not stop.is_set():
                n += 1
                kiln.compile(lambda x: x * 2 + 1)(normal(n))

        worker = threading.Thread(target=busy)
        worker.start()
        try:
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if values(kiln.ones(2) + 1) == [2.0, 2.0] else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            stop.set()
            worker.join(30)
