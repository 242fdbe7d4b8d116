"""The programs on which naive recorders and autograd engines break: each eagerly and recorded, the same bits.

The numbers are the rules of the design; 10 to 19 stand in test_semantics_contracts.py, 20 to 25 in
test_semantics_structure.py.
"""

from __future__ import annotations

import ctypes
import gc
import traceback
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend import WAYS, check_same, kiln, needs, needs_kiln, normal, tensor, values

from kiln.testing.compare import same_bits, to_array

# -- A. silently wrong if forgotten ----------------------------------------------------------------------


class TestOutsideMemory:
    """Rule 1: memory that NumPy holds is read and written at the line."""

    @WAYS
    def test_array_written_after_the_read(self, way: Any) -> None:
        def program(a: Any) -> Any:
            x = kiln.from_numpy(a)
            y = x * 2
            a[:] = 0
            return y

        run = way(program)
        for _ in range(3):
            assert values(run(np.array([1.0, 2.0], np.float32))) == [2.0, 4.0]

    @WAYS
    def test_array_sees_the_write(self, way: Any) -> None:
        def program(w: Any, a: Any) -> Any:
            w.add_(1)
            return a.copy()

        run = way(program)
        for _ in range(3):
            w = tensor(1, 2)
            assert run(w, w.numpy()).tolist() == [2.0, 3.0]

    @WAYS
    def test_alternating_reads_and_writes(self, way: Any) -> None:
        def program(a: Any) -> Any:
            x = kiln.from_numpy(a)
            y = x + 1
            a += 5
            z = x + 1
            x.mul_(2)
            a += 1
            return y, z, x.clone(), x

        check_same(program, lambda: (np.array([1.0, 2.0], np.float32),))
        y, z, copied, x = way(program)(np.array([1.0], np.float32))
        assert [values(t) for t in (y, z, copied, x)] == [[2.0], [7.0], [13.0], [13.0]]

    @WAYS
    def test_view_of_an_array_made_inside(self, way: Any) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            a = y[1:].numpy()
            y.add_(1)
            before = a.copy()
            a[:] = 9
            return y, before

        y, before = way(program)(tensor(1, 2, 3))
        assert values(y) == [3.0, 9.0, 9.0]
        assert before.tolist() == [5.0, 7.0]

    @WAYS
    @pytest.mark.parametrize("how", ["array", "address"])
    def test_memory_that_was_only_read(self, way: Any, how: str) -> None:
        def program(x: Any) -> Any:
            y = x * 2
            if how == "array":
                x.numpy()[0] = 7.0
            else:
                ctypes.c_float.from_address(x.data_ptr()).value = 7.0
            return y, x + 1

        run = way(program)
        for _ in range(3):
            assert [values(t) for t in run(tensor(1, 2))] == [[2.0, 4.0], [8.0, 3.0]]

    @WAYS
    @needs("Tensor.data_ptr")
    def test_address_handed_out(self, way: Any) -> None:
        def program(w: Any, pointer: int) -> Any:
            w.add_(1)
            seen = ctypes.c_float.from_address(pointer).value
            ctypes.c_float.from_address(pointer).value = 5.0
            return w * 1, seen

        w = tensor(1, 2)
        result, seen = way(program)(w, w.data_ptr())
        assert seen == 2.0
        assert values(result) == [5.0, 3.0]

    @WAYS
    @needs("Tensor.__dlpack__")
    def test_dlpack_shares_memory(self, way: Any) -> None:
        def program(w: Any, a: Any) -> Any:
            w.add_(1)
            return a.copy()

        w = tensor(1, 2)
        assert way(program)(w, np.from_dlpack(w)).tolist() == [2.0, 3.0]


class TestDataErrors:
    """Rule 2: an error that depends on data is raised on its line, and nothing was written by the op that
    raised.
    """

    @WAYS
    def test_unused_gather_is_not_dead(self, way: Any) -> None:
        def program(x: Any, i: Any) -> Any:
            try:
                x.gather(0, i)
            except (IndexError, RuntimeError):
                return x + 1
            return x - 1

        run = way(program)
        for index, expected in (
            ([0, 1], [0.0, 1.0]),
            ([0, 9], [2.0, 3.0]),
            ([0, 1], [0.0, 1.0]),
            ([-9, 1], [2.0, 3.0]),
        ):
            assert values(run(tensor(1, 2), kiln.tensor(index))) == expected

    @WAYS
    @needs("nn.functional.embedding")
    def test_effects_before_the_error_stay(self, way: Any) -> None:
        def program(w: Any, table: Any, i: Any, log: list[int]) -> Any:
            w.add_(1)
            kiln.nn.functional.embedding(i, table)
            log.append(1)
            w.add_(10)

        for _ in range(3):
            w, log = tensor(1, 2), []
            with pytest.raises(IndexError):
                way(program)(w, kiln.zeros(3, 2), kiln.tensor([0, 3]), log)
            assert values(w) == [2.0, 3.0]
            assert log == []

    @WAYS
    def test_computed_index(self, way: Any) -> None:
        def program(x: Any, i: Any) -> Any:
            try:
                return x.gather(0, i * 2)
            except (IndexError, RuntimeError):
                return x.gather(0, i)

        check_same(program, lambda: (tensor(1, 2, 3), kiln.tensor([0, 2])))
        assert values(way(program)(tensor(1, 2, 3), kiln.tensor([0, 2]))) == [1.0, 3.0]

    @needs_kiln
    @WAYS
    def test_no_partial_scatter(self, way: Any) -> None:
        def program(base: Any, i: Any, src: Any) -> Any:
            base.scatter_add_(0, i, src)

        base = tensor(1, 2, 3)
        for _ in range(3):
            with pytest.raises((IndexError, RuntimeError)):
                way(program)(base, kiln.tensor([0, 1, 7]), tensor(1, 1, 1))
            assert values(base) == [1.0, 2.0, 3.0]

    def test_provable_indices(self) -> None:
        def program(x: Any) -> Any:
            return x.gather(1, x.argmax(1, keepdim=True)), x.gather(1, kiln.zeros(4, 2, dtype=kiln.int64))

        check_same(program, lambda: (normal(4, 5),))


class TestLiveSet:
    """Rule 3: what is visible after the call is what Python still holds, whatever was visible last time."""

    def test_kept_every_other_time(self) -> None:
        keep: list[Any] = []

        def program(x: Any, hold: bool) -> Any:
            h = kiln.tanh(x)
            if hold:
                keep.append(h)
            return h * 2

        compiled = kiln.compile(program)
        for call in range(8):
            hold = call % 3 == 2
            assert same_bits(
                to_array(compiled(normal(5, seed=call), hold)), to_array(program(normal(5, seed=call), hold))
            )
        assert len(keep) == 4
        for first, second in zip(keep[::2], keep[1::2], strict=True):
            assert same_bits(to_array(first), to_array(second))

    @WAYS
    def test_a_traceback_holds_a_value(self, way: Any) -> None:
        def program(x: Any, fail: bool) -> Any:
            h = x * 3
            if fail:
                raise KeyError("stop")
            return h + 1

        run = way(program)
        for fail in (False, False, True, False):
            try:
                assert values(run(tensor(1, 2), fail)) == [4.0, 7.0]
            except KeyError as error:
                frames = [
                    f for f, _ in traceback.walk_tb(error.__traceback__) if f.f_code.co_name == "program"
                ]
                assert values(frames[0].f_locals["h"]) == [3.0, 6.0]

    @WAYS
    def test_a_cycle_holds_a_value(self, way: Any) -> None:
        class Holder:
            def __init__(self, h: Any) -> None:
                self.h, self.me = h, self

        found: list[Any] = []

        def program(x: Any) -> Any:
            h = x + 1
            found.append(weakref.ref(Holder(h)))
            return h * 2

        run = way(program)
        for _ in range(4):
            assert values(run(tensor(1, 2))) == [4.0, 6.0]
            holder = found[-1]()
            assert holder is None or values(holder.h) == [2.0, 3.0]
            del holder
            gc.collect()

    def test_dead_values_next_to_live_ones(self) -> None:
        def program(x: Any) -> Any:
            kept = []
            for k in range(6):
                h = x * k
                if k % 2:
                    kept.append(h)
                del h
            return kept

        check_same(program, lambda: (normal(3),), calls=4)


class TestSavedTensors:
    """Rule 4: a saved tensor is read when backward reads it, and its version is checked."""

    @WAYS
    def test_written_through_data(self, way: Any) -> None:
        def program(x: Any) -> Any:
            y = x * x
            x.data.mul_(3)
            y.sum().backward()
            return x.grad

        run = way(program)
        for _ in range(3):
            assert values(run(tensor(1, 2, grad=True))) == [6.0, 12.0]

    @WAYS
    def test_written_in_place(self, way: Any) -> None:
        def program(x: Any) -> Any:
            y = x * 1
            z = y * y
            y.add_(1)
            z.sum().backward()

        for _ in range(3):
            with pytest.raises(RuntimeError, match=r"in-?place"):
                way(program)(tensor(1, 2, grad=True))

    def test_written_where_nothing_was_saved(self) -> None:
        def program(x: Any) -> Any:
            y = x + 1
            z = y + y
            y.add_(1)
            z.sum().backward()
            return x.grad, y, z

        check_same(program, lambda: (tensor(1, 2, grad=True),))

    def test_a_view_of_the_saved_value_written(self) -> None:
        def program(x: Any) -> Any:
            y = x * 1
            z = kiln.exp(y) * y
            y[0].zero_()
            z.sum().backward()

        check_same(program, lambda: (tensor(1, 2, grad=True),), raises="RuntimeError")


class TestOverlap:
    """Rule 5: who shares memory with whom is part of what was recorded."""

    def test_windows_of_a_buffer(self) -> None:
        def program(buf: Any, i: int) -> Any:
            buf[0:4] += 1
            return buf[i : i + 4] * 2

        compiled = kiln.compile(program)
        for i in (4, 4, 2, 0, 4, 3):
            one, two = normal(8), normal(8)
            assert same_bits(to_array(program(one, i)), to_array(compiled(two, i)))
            assert same_bits(to_array(one), to_array(two))

    def test_equal_arguments_after_different_ones(self) -> None:
        def program(x: Any, y: Any) -> Any:
            x.add_(1)
            return x * y

        compiled = kiln.compile(program)
        for same in (False, False, True, False, True):
            x, y = normal(4), normal(4, seed=1)
            p, q = normal(4), normal(4, seed=1)
            expected, got = program(x, x if same else y), compiled(p, p if same else q)
            assert same_bits(to_array(expected), to_array(got))

    def test_which_of_two_is_read_again(self) -> None:
        def program(x: Any, y: Any, first: bool) -> Any:
            return x * y - (x if first else y)

        compiled = kiln.compile(program, wait=True)
        for first in (True, True, False, False, True):
            assert values(compiled(tensor(1, 2), tensor(3, 5), first)) == (
                [2.0, 8.0] if first else [0.0, 5.0]
            )

    def test_views_given_as_arguments(self) -> None:
        def program(x: Any, y: Any) -> Any:
            x.mul_(2)
            y.add_(1)
            return x + y

        compiled = kiln.compile(program)
        for start in (3, 3, 0, 2, 3):
            one, two = normal(6), normal(6)
            expected = program(one[:3], one[start : start + 3])
            got = compiled(two[:3], two[start : start + 3])
            assert same_bits(to_array(expected), to_array(got))
            assert same_bits(to_array(one), to_array(two))

    @WAYS
    def test_overlapping_update(self, way: Any) -> None:
        def program(x: Any) -> Any:
            x[1:] += x[:-1]

        with pytest.raises(RuntimeError, match="memory|overlap"):
            way(program)(normal(6))

    def test_undecidable_overlap_reads_first(self) -> None:
        def program(x: Any) -> Any:
            try:
                x[::2] += x[:6]
            except RuntimeError:
                return "refused"
            return x

        check_same(program, lambda: (normal(12),))

    @WAYS
    def test_expanded_target(self, way: Any) -> None:
        with pytest.raises(RuntimeError):
            way(lambda x: x.expand(3, 2).add_(1))(tensor(1, 2))


class TestScalars:
    """Rule 6: every number is an argument of its own."""

    def test_equal_by_accident(self) -> None:
        def program(x: Any, a: float, b: float) -> Any:
            return x * a + x * b

        compiled = kiln.compile(program)
        for a, b in ((3, 3), (3, 3), (3, 4), (3.0, 3.0), (3.0, 4.0), (0.5, 3), (True, 2)):
            assert same_bits(to_array(program(normal(4), a, b)), to_array(compiled(normal(4), a, b)))

    def test_signed_zero(self) -> None:
        def program(x: Any, z: float) -> Any:
            return x + z

        compiled = kiln.compile(program)
        for z in (0.0, 0.0, -0.0, 0.0, -0.0):
            got = to_array(compiled(tensor(-0.0, 0.0), z))
            assert np.signbit(got).tolist() == [bool(np.signbit(z)), False]

    def test_annealed_from_zero_to_one(self) -> None:
        def program(x: Any, y: Any, t: float) -> Any:
            return x * (1 - t) + y * t

        compiled = kiln.compile(program)
        for step in range(6):
            t = step / 5
            args = (tensor(1, float("inf")), tensor(2, 3))
            assert same_bits(to_array(program(*args, t)), to_array(compiled(*args, t)))

    def test_exponents(self) -> None:
        def program(x: Any, p: Any) -> Any:
            y = x**p
            y.sum().backward()
            return y, x.grad

        compiled = kiln.compile(program)
        for p in (2, 2, 3, 2.0, 0.5, 0, 1, -1, 2.5, 2):
            x, other = tensor(0.5, 2, grad=True), tensor(0.5, 2, grad=True)
            for one, two in zip(program(x, p), compiled(other, p), strict=True):
                assert same_bits(to_array(one), to_array(two)), p

    def test_kinds_of_numbers_promote(self) -> None:
        def program(x: Any, a: Any) -> Any:
            return x * a

        compiled = kiln.compile(program)
        for a in (2, 2.5, True, 2, 2.5):
            one, two = program(kiln.tensor([1, 2]), a), compiled(kiln.tensor([1, 2]), a)
            assert one.dtype == two.dtype
            assert same_bits(to_array(one), to_array(two))

    def test_numbers_in_composites(self) -> None:
        def program(x: Any, eps: float) -> Any:
            return kiln.nn.functional.layer_norm(x, (4,), None, None, eps)

        compiled = kiln.compile(program)
        for eps in (1e-5, 1e-5, 1e-1, 1.0, 1e-5):
            assert same_bits(to_array(program(normal(3, 4), eps)), to_array(compiled(normal(3, 4), eps)))


class TestSizes:
    """Rule 7: what was recorded says which dims broadcast, not which happened to be equal."""

    def test_an_accidental_square(self) -> None:
        def program(x: Any, w: Any) -> Any:
            return kiln.tanh(x @ w)

        compiled = kiln.compile(program)
        w = normal(20, 20)
        for t in (18, 18, 19, 20, 21, 20, 1, 0, 22):
            assert same_bits(to_array(program(normal(t, 20), w)), to_array(compiled(normal(t, 20), w)))

    @needs_kiln
    def test_no_new_kernel_for_a_new_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))  # where no other process writes meanwhile

        def program(x: Any, w: Any) -> Any:
            return ((x @ w) * 1.25 - x).sum(0)

        compiled, w = kiln.compile(program), normal(13, 13)
        for t in (9, 9, 10):
            compiled(normal(t, 13), w)
        before = {p for p in tmp_path.rglob("*") if p.is_file()}
        for t in range(8, 18):
            compiled(normal(t, 13), w)
        assert before and {p for p in tmp_path.rglob("*") if p.is_file()} == before

    def test_dims_that_become_one(self) -> None:
        def program(x: Any, y: Any) -> Any:
            z = x + y
            z.sum().backward()
            return z, x.grad, y.grad

        compiled = kiln.compile(program)
        shapes = [
            ((3, 4), (3, 4)),
            ((3, 4), (3, 4)),
            ((1, 4), (3, 4)),
            ((3, 1), (1, 4)),
            ((1, 1), (1, 1)),
            ((0, 4), (1, 4)),
        ]
        for p, q in [*shapes, *shapes]:
            one = program(normal(*p).requires_grad_(), normal(*q).requires_grad_())
            two = compiled(normal(*p).requires_grad_(), normal(*q).requires_grad_())
            for a, b in zip(one, two, strict=True):
                assert same_bits(to_array(a), to_array(b)), (p, q)

    def test_sizes_read_by_python(self) -> None:
        def program(x: Any) -> Any:
            n = x.shape[0]
            return x.sum() / n if n > 3 else x.reshape(n * 2, -1) * n

        compiled = kiln.compile(program)
        for n in (4, 4, 5, 3, 2, 4, 1):
            assert same_bits(to_array(program(normal(n, 4))), to_array(compiled(normal(n, 4))))


class TestGradientOrder:
    """Rule 8: contributions are added in descending order of their consumers' creation, then onto `.grad`."""

    @WAYS
    def test_order_of_three_uses(self, way: Any) -> None:
        def program(x: Any) -> Any:
            first, second, third = x * 1.0, x * 1e8, x * -1e8
            (first + second + third).sum().backward()
            return x.grad

        run = way(program)
        for _ in range(3):
            assert values(run(tensor(1, 2, grad=True))) == [1.0, 1.0]

    @WAYS
    def test_summed_before_accumulated(self, way: Any) -> None:
        def program(x: Any) -> Any:
            (x * 1e8 + x * -1e8).sum().backward()
            return x.grad

        x = tensor(1, grad=True)
        x.grad = tensor(1)
        assert values(way(program)(x)) == [1.0]

    def test_many_uses(self) -> None:
        def program(x: Any) -> Any:
            y = kiln.tanh(x)
            z = y * x + kiln.exp(y) * y - kiln.sigmoid(x * y)
            z.sum().backward()
            return x.grad

        check_same(program, lambda: (normal(50).requires_grad_(),))

    def test_create_graph_sums_in_the_same_order(self) -> None:
        x = normal(64).requires_grad_()
        y = (kiln.tanh(x) * x + kiln.exp(x) * x).sum()
        (plain,) = kiln.autograd.grad(y, (x,), retain_graph=True)
        (rebuilt,) = kiln.autograd.grad(y, (x,), create_graph=True)
        if kiln.is_kiln:
            assert same_bits(to_array(plain), to_array(rebuilt))


COMPOSITES = {
    "softmax": lambda f, x, t: f.softmax(x, 1),
    "log_softmax": lambda f, x, t: f.log_softmax(x, 1),
    "layer_norm": lambda f, x, t: f.layer_norm(x, (5,)),
    "gelu": lambda f, x, t: f.gelu(x),
    "gelu tanh": lambda f, x, t: f.gelu(x, approximate="tanh"),
    "cross_entropy": lambda f, x, t: f.cross_entropy(x, t),
}


@pytest.mark.parametrize("name", COMPOSITES)
class TestComposites:
    """Rule 9: a fused composite is differentiable twice, and leaks nothing."""

    def test_double_backward(self, name: str) -> None:
        def program(x: Any, t: Any) -> Any:
            y = COMPOSITES[name](kiln.nn.functional, x, t)
            (g,) = kiln.autograd.grad(y.pow(2).sum(), x, create_graph=True)
            g.pow(2).sum().backward()
            return y, g, x.grad

        check_same(program, lambda: (normal(4, 5).requires_grad_(), kiln.tensor([0, 4, 1, 1])))

    @WAYS
    def test_nothing_is_left_behind(self, name: str, way: Any) -> None:
        def program(x: Any, t: Any) -> Any:
            y = COMPOSITES[name](kiln.nn.functional, x * x, t).sum()
            y.backward()
            return y

        run, t = way(program), kiln.tensor([0, 4, 1, 1])
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                array = np.ones((4, 5), np.float32)
                alive = weakref.ref(array)
                run(kiln.from_numpy(array).requires_grad_(), t)
                del array
                assert alive() is None
        finally:
            gc.enable()

    def test_forward_kept_without_backward(self, name: str) -> None:
        array = np.ones((4, 5), np.float32)
        alive, t = weakref.ref(array), kiln.tensor([0, 4, 1, 1])
        y = COMPOSITES[name](kiln.nn.functional, kiln.from_numpy(array).requires_grad_() * 1, t)
        del array, y
        assert alive() is None
