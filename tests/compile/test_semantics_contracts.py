"""Contracts of recording and autograd, rules 10 to 19: each program eagerly and recorded, the same bits."""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from typing import Any

import numpy as np
import pytest
from backend import (
    WAYS,
    check_same,
    kiln,
    needs,
    needs_kiln,
    normal,
    recorded,
    tensor,
    values,
    where_supported,
)

from kiln.testing.compare import same_bits, to_array


class TestThreads:
    """Rule 10: another thread that touches a recorded storage sees it as eager would have left it."""

    @WAYS
    @pytest.mark.parametrize("action", ["read", "write"])
    def test_a_worker_touches_it(self, way: Any, action: str) -> None:
        def program(x: Any) -> Any:
            y = x + 1
            seen: list[float] = []
            work = (lambda: seen.append(y.sum().item())) if action == "read" else x.zero_
            worker = threading.Thread(target=work)
            worker.start()
            worker.join(30)
            assert not worker.is_alive()
            return y * 1, x * 1, seen

        run = way(program)
        for _ in range(3):
            y, x, seen = run(tensor(1, 2))
            assert values(y) == [2.0, 3.0]
            assert values(x) == ([1.0, 2.0] if action == "read" else [0.0, 0.0])
            assert seen == ([5.0] if action == "read" else [])

    def test_two_regions_in_two_threads(self) -> None:
        def program(x: Any) -> Any:
            for _ in range(20):
                x = kiln.tanh(x * 1.5)
            return x

        compiled, found = kiln.compile(program), {}
        expected = {n: to_array(program(normal(9, seed=n))) for n in range(4)}

        def work(n: int) -> None:
            for _ in range(20):
                found[n] = to_array(compiled(normal(9, seed=n)))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert all(same_bits(expected[n], found[n]) for n in range(4))


alpha = 0.1


@needs_kiln
class TestCapturedOnce:
    """Rule 11: a function captured once may not depend on Python state that can change."""

    def test_a_global_number_is_refused(self) -> None:
        with pytest.raises(Exception, match="alpha.*argument|argument.*alpha"):
            kiln.pointwise(lambda x: kiln.where(x > 0, x, alpha * x))(tensor(-1, 1))

    def test_a_closure_is_refused(self) -> None:
        beta = 0.5
        with pytest.raises(Exception, match="beta"):
            kiln.pointwise(lambda x: x * beta)(tensor(-1, 1))

    def test_an_argument_is_not(self) -> None:
        leaky = kiln.pointwise(lambda x, a: kiln.where(x > 0, x, a * x))
        assert values(leaky(tensor(-1, 1), 0.5)) == [-0.5, 1.0]
        assert values(leaky(tensor(-1, 1), 0.25)) == [-0.25, 1.0]

    def test_the_derivative_follows(self) -> None:
        square = kiln.pointwise(lambda x: x * x + kiln.exp(x))
        x = tensor(0, 1, grad=True)
        square(x).sum().backward()
        assert np.allclose(to_array(x.grad), [1.0, 2 + np.e])

    def test_two_functions_of_one_content(self) -> None:
        one, two = (kiln.pointwise(lambda x: x * 3) for _ in range(2))
        assert values(one(tensor(2))) == values(two(tensor(2))) == [6.0]


class TestUndefinedBits:
    """Rule 12: where the standard leaves the value open, ours is one and the same."""

    def test_conversions_out_of_range(self) -> None:
        def program(x: Any) -> Any:
            return x.to(kiln.int32), x.to(kiln.int64), x.to(kiln.uint8), x.to(kiln.bool)

        check_same(
            program, lambda: (tensor(float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 300.0, -1.5),)
        )

    @needs_kiln
    def test_integer_division(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return x // y, x % y

        check_same(program, lambda: (kiln.tensor([-(2**63), 7, -7, 5]), kiln.tensor([-1, 2, 2, -5])))

    @needs("bitwise_left_shift")
    def test_wide_shifts(self) -> None:
        def program(x: Any, y: Any) -> Any:
            return x << y, x >> y

        check_same(program, lambda: (kiln.tensor([1, -1, 3]), kiln.tensor([64, 100, 63])))

    def test_empty_is_one_buffer(self) -> None:
        def program() -> Any:
            e = kiln.empty(3)
            one, two = e * 1, e * 1
            return (one == two).all().item() or bool(kiln.isnan(one).any())

        for run in (program, recorded(program)):
            assert all(run() for _ in range(3))

    @needs("signbit")
    def test_signbit_of_nan(self) -> None:
        check_same(lambda x: kiln.signbit(x - x), lambda: (tensor(float("inf"), -float("inf")),))


class TestAlgorithms:
    """Rule 13: an order of summation is a function of logical sizes."""

    def test_sum_of_the_transpose(self) -> None:
        x = normal(70, 333)
        for one, two in (
            (x.t().sum(0), x.sum(1)),
            (x.t().contiguous().sum(0), x.sum(1)),
            (x[:, None].sum(2), x.sum(1)[:, None]),
        ):
            if kiln.is_kiln:
                assert same_bits(to_array(one), to_array(two))

    def test_rows_do_not_depend_on_their_neighbours(self) -> None:
        if not kiln.is_kiln:
            pytest.skip("PyTorch makes no such promise")
        x = normal(40, 777)
        for f in (lambda x: x.sum(1), lambda x: kiln.softmax(x, 1), lambda x: x.amax(1)):
            assert same_bits(to_array(f(x))[7:9], to_array(f(x[7:9])))

    @needs_kiln
    def test_products_by_layout_and_batch(self) -> None:
        a, b = normal(3, 33, 700), normal(3, 700, 21)
        whole = to_array(a @ b)
        turned = to_array(
            a.transpose(1, 2).contiguous().transpose(1, 2) @ b.transpose(1, 2).contiguous().transpose(1, 2)
        )
        assert same_bits(whole, turned)

    def test_epilogue_in_low_precision(self) -> None:
        def program(x: Any, w: Any, b: Any) -> Any:
            return kiln.relu(kiln.nn.functional.linear(x, w, b))

        with where_supported():
            for dtype in (kiln.float32, kiln.float16, kiln.bfloat16):
                check_same(
                    program, lambda d=dtype: (normal(9, 40).to(d), normal(7, 40).to(d), normal(7).to(d))
                )

    def test_repeated_indices_add_in_order(self) -> None:
        def program(base: Any, i: Any, src: Any) -> Any:
            return base.scatter_add(0, i, src)

        check_same(program, lambda: (tensor(0, 0), kiln.tensor([0, 0, 0, 0]), tensor(1e8, 1, -1e8, 1)))
        got = program(tensor(0, 0), kiln.tensor([0, 0, 0, 0]), tensor(1e8, 1, -1e8, 1))
        assert values(got) == [1.0, 0.0]


class TestStorages:
    """Rule 14: a storage is whole, has eager's strides, and stays where it is once anyone saw it."""

    @needs("Tensor.as_strided")
    def test_the_whole_of_a_temporary(self) -> None:
        def program(x: Any) -> Any:
            y = (x * 2)[0]
            return y.as_strided(x.shape, x.stride(), 0)

        with where_supported():
            check_same(program, lambda: (normal(3, 4),))

    def test_strides_as_eager(self) -> None:
        def program(x: Any) -> Any:
            made = [
                x.t() * 2,
                kiln.tanh(x.t()),
                x.t() + x.t(),
                x.permute(1, 0).contiguous(),
                x.sum(0, keepdim=True),
            ]
            return [
                (y.stride(), y.storage_offset(), y.is_contiguous()) for y in [*made, *(y[1:] for y in made)]
            ]

        assert (
            program(normal(3, 4))
            == kiln.compile(program)(normal(3, 4))
            == kiln.compile(program)(normal(3, 4))
        )

    @WAYS
    def test_an_array_kept_over_steps(self, way: Any) -> None:
        w = tensor(0, 0)
        a = w.numpy()

        def program() -> None:
            w.add_(1)

        run = way(program)
        for step in range(5):
            run()
            assert a.tolist() == [step + 1.0] * 2

    @WAYS
    def test_data_exchanged(self, way: Any) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            x.data = kiln.zeros(2)
            return y, x * 1

        y, z = way(program)(tensor(1, 2))
        assert values(y) == [2.0, 4.0]
        assert values(z) == [0.0, 0.0]


class TestFlush:
    """Rule 15: a flush runs everything pending, and a recording does not grow without bound."""

    @WAYS
    def test_a_running_total(self, way: Any) -> None:
        def program(batches: list[Any]) -> Any:
            total = kiln.zeros(())
            for b in batches:
                total += b.sum()
            return total

        run = way(program)
        for count in (3, 3, 3, 50, 4):
            assert run([tensor(1, 2)] * count).item() == 3.0 * count

    @pytest.mark.parametrize("count", [1000, 20_000])
    def test_many_ops(self, count: int) -> None:
        def program(x: Any) -> Any:
            for _ in range(count):
                x = x * 0.999
            return x

        check_same(program, lambda: (tensor(1, 2),), calls=2)

    def test_reading_in_the_middle(self) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            if y.sum().item() > 0:
                y = y + 1
            z = y * 3
            print(float(z[0]), file=open(os.devnull, "w"))
            return y, z, z - y

        compiled = kiln.compile(program)
        for seed in range(6):
            one, two = program(normal(4, seed=seed)), compiled(normal(4, seed=seed))
            assert all(same_bits(to_array(a), to_array(b)) for a, b in zip(one, two, strict=True))


class TestExceptions:
    """Rule 16: leaving by an exception leaves what eager leaves."""

    @WAYS
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    def test_writes_before_it_stay(self, way: Any, error: type[BaseException]) -> None:
        w = tensor(1, 2)

        def program(stop: bool) -> None:
            w.add_(1)
            if stop:
                raise error("stop")
            w.mul_(2)

        run = way(program)
        run(False)
        for _ in range(2):
            with pytest.raises(error):
                run(True)
        assert values(w) == [6.0, 8.0]
        assert values(w + 1) == [7.0, 9.0]

    @WAYS
    def test_an_invalid_line_raises_on_its_line(self, way: Any) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            return y + kiln.zeros(5)  # this line

        with pytest.raises(RuntimeError) as caught:
            way(program)(tensor(1, 2, 3))
        lines = [f.line for f in traceback.extract_tb(caught.value.__traceback__)]
        assert any("# this line" in (line or "") for line in lines) or "this line" in str(caught.traceback)

    @pytest.mark.op_by_op
    @WAYS
    def test_no_memory(self, way: Any) -> None:
        def program(x: Any) -> Any:
            x.add_(1)
            return x.expand(2**45, 2) * 2

        x = tensor(1, 2)
        with pytest.raises((RuntimeError, MemoryError)):
            way(program)(x)
        assert values(x) == [2.0, 3.0]


class TestRandomState:
    """Rule 17: the generator advances at the line, used or not."""

    def test_draws_eager_and_recorded(self) -> None:
        def program() -> Any:
            kiln.rand(3)
            a, b = kiln.rand(3), kiln.rand(3)
            c = kiln.randn(2, 5)
            return a, b, c, kiln.rand(1)

        compiled = kiln.compile(program)
        for seed in (1, 2, 3, 1):
            kiln.manual_seed(seed)
            one = [*program(), kiln.rand(2)]
            kiln.manual_seed(seed)
            two = [*compiled(), kiln.rand(2)]
            assert all(same_bits(to_array(a), to_array(b)) for a, b in zip(one, two, strict=True))
            assert not same_bits(to_array(one[0]), to_array(one[1]))

    @needs("get_rng_state")
    def test_state_in_the_middle(self) -> None:
        def program() -> Any:
            a = kiln.rand(3)
            state = kiln.get_rng_state()
            b = kiln.rand(3)
            kiln.set_rng_state(state)
            return a, b, kiln.rand(3)

        for run in (program, *[recorded(program)] * 3):
            kiln.manual_seed(5)
            a, b, again = run()
            assert same_bits(to_array(b), to_array(again))
            assert not same_bits(to_array(a), to_array(b))

    @needs("nn.functional.dropout")
    def test_dropout(self) -> None:
        def program(x: Any) -> Any:
            y = kiln.nn.functional.dropout(x, 0.5)
            y.sum().backward()
            return y, x.grad

        compiled = kiln.compile(program)
        for seed in (1, 2, 3):
            kiln.manual_seed(seed)
            one = program(normal(40).requires_grad_())
            kiln.manual_seed(seed)
            two = compiled(normal(40).requires_grad_())
            assert all(same_bits(to_array(a), to_array(b)) for a, b in zip(one, two, strict=True))


class TestGrad:
    """Rule 18: `.grad` owns its memory, keeps its identity, and no undefined gradient becomes zeros."""

    @WAYS
    def test_it_shares_nothing(self, way: Any) -> None:
        def program(a: Any, b: Any, g: Any) -> None:
            (a + b).backward(g)
            a.grad.zero_()

        a, b, g = tensor(1, 2, grad=True), tensor(3, 4, grad=True), tensor(5, 6)
        way(program)(a, b, g)
        assert values(b.grad) == values(g) == [5.0, 6.0]
        assert values(a.grad) == [0.0, 0.0]

    @WAYS
    def test_identity_without_create_graph(self, way: Any) -> None:
        def program(p: Any) -> Any:
            (p * 2).sum().backward()
            kept = p.grad
            (p * 3).sum().backward()
            return kept, p.grad, kept is p.grad

        kept, grad, same = way(program)(tensor(1, grad=True))
        assert same
        assert values(kept) == values(grad) == [5.0]

    @WAYS
    def test_identity_with_create_graph(self, way: Any) -> None:
        def program(p: Any) -> Any:
            (p * p).sum().backward(create_graph=True)
            kept = p.grad
            (p * p).sum().backward(create_graph=True)
            return kept, p.grad, kept is p.grad

        with where_supported(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept, grad, same = way(program)(tensor(3, grad=True))
        assert not same
        assert values(kept) == [6.0]
        assert values(grad) == [12.0]

    @WAYS
    def test_an_unused_output_is_not_zeros(self, way: Any) -> None:
        def program(x: Any) -> Any:
            parts = x.split(1) if hasattr(x, "split") else (x[:1], x[1:])
            bad = parts[0] * float("inf")
            (parts[1] * 2).sum().backward()
            return x.grad, bad

        grad, _ = way(program)(tensor(0, 1, grad=True))
        assert values(grad) == [0.0, 2.0]

    @WAYS
    def test_layout_follows_the_parameter(self, way: Any) -> None:
        def program(p: Any) -> Any:
            (p.t() * 2).sum().backward()
            return p.grad.stride()

        assert way(program)(normal(3, 4).requires_grad_()) == (4, 1)


class TestHooks:
    """Rule 19: hooks run in the engine's order, and see what eager hooks see."""

    @WAYS
    @needs("Tensor.register_hook")
    def test_a_hook_that_writes(self, way: Any) -> None:
        def program(x: Any) -> Any:
            a, b = x * 1, x * 1
            a.register_hook(lambda g: g * 10)
            (a + b).sum().backward()
            return x.grad

        run = way(program)
        for _ in range(3):
            assert values(run(tensor(1, 2, grad=True))) == [11.0, 11.0]

    @WAYS
    @needs("Tensor.register_hook")
    def test_a_hook_that_reads(self, way: Any) -> None:
        seen: list[float] = []

        def program(x: Any) -> Any:
            y = x * 3
            y.register_hook(lambda g: seen.append(g.sum().item()))
            (y * y).sum().backward()
            return x.grad

        assert values(way(program)(tensor(1, 2, grad=True))) == [18.0, 36.0]
        assert seen == [18.0]

    @WAYS
    @needs("Tensor.register_hook")
    def test_a_hook_that_raises(self, way: Any) -> None:
        def bad(g: Any) -> Any:
            raise ValueError("from the hook")

        def program(x: Any) -> Any:
            y = x * 3
            y.register_hook(bad)
            y.sum().backward()

        x = tensor(1, 2, grad=True)
        with pytest.raises(ValueError, match="from the hook"):
            way(program)(x)
        assert x.grad is None
        (x * 2).sum().backward()
        assert values(x.grad) == [2.0, 2.0]
