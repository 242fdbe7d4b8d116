"""Rule 10 and the interpreter lock: what other threads may do while kernels run, and what they see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backend import WAYS, kiln, needs_kiln, normal, tensor, values

from kiln.capture import service
from kiln.testing.compare import same_bits, to_array


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Runs every function on a thread of its own, all from one moment on; their results, or an error."""
    barrier, found = threading.Barrier(len(works)), [None] * len(works)

    def run(place: int) -> None:
        barrier.wait(60)
        try:
            found[place] = works[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def others_ran_during(work: Callable[[], Any], times: int) -> bool:
    """Whether a waiting thread got the interpreter before `work` was done so many times."""
    ready, go, counted = threading.Event(), threading.Lock(), []

    def count() -> None:
        ready.set()
        with go:
            counted.append(1)

    go.acquire()
    thread = threading.Thread(target=count)
    thread.start()
    assert ready.wait(60)
    go.release()
    for _ in range(times):
        if counted:
            break
        work()
    seen = bool(counted)
    thread.join(60)
    return seen


@pytest.fixture
def no_switching() -> Iterator[None]:
    """Threads change only where one gives up the interpreter lock by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Programs run alone, not beside their ops."""
    if not kiln.is_kiln:
        yield
        return
    from kiln import _core

    before = _core.set_check(False)
    yield
    _core.set_check(before)


def _work(name: str) -> Callable[[], Any]:
    """Something whose kernels take long."""
    a, g = normal(400, 400), normal(300, 300).requires_grad_()
    f = kiln.compile(lambda t: kiln.tanh(t * 2) @ t, wait=True) if kiln.is_kiln else None
    works: dict[str, Callable[[], Any]] = {
        "matmul": lambda: a @ a,
        "map": lambda: kiln.tanh(a),
        "strided map": lambda: kiln.tanh(a.t()) + a,
        "in place": lambda: a.mul_(0.5),
        "reduction": lambda: kiln.softmax(a, 1),
        "region": lambda: f(a),
        "backward": lambda: (g @ g).sum().backward(),
    }
    return works[name]


@needs_kiln
@pytest.mark.usefixtures("no_switching", "unchecked")
@pytest.mark.parametrize(
    "name", ["matmul", "map", "strided map", "in place", "reduction", "region", "backward"]
)
def test_others_go_on_while_a_kernel_runs(name: str) -> None:
    """A waiting Python thread gets the interpreter while a long kernel runs: nothing else lets it have it."""
    work = _work(name)
    for _ in range(3):
        work()  # kernels and programs are there
    assert others_ran_during(work, 5000)


@needs_kiln
@pytest.mark.usefixtures("no_switching")
def test_small_ops_keep_the_lock() -> None:
    """No launch of a few microseconds pays for a lock."""
    x = normal(100)
    (x * 2).sum()
    assert not others_ran_during(lambda: (x * 2).sum(), 2000)


@needs_kiln
def test_a_function_called_otherwise_during_a_kernel() -> None:
    """What backward reads of `a * b` is not taken for what it reads of another thread's `x * 2`."""
    a, b, x = normal(1 << 20).requires_grad_(), normal(1 << 20), normal(4).requires_grad_()
    done = threading.Event()

    def long() -> bool:
        try:
            for _ in range(60):
                a.grad = None
                (a * b).sum().backward()
                if not same_bits(to_array(a.grad), to_array(b)):
                    return False
            return True
        finally:
            done.set()

    def short() -> None:
        while not done.is_set():
            x * 2.0

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert in_threads(long, short)[0]
    finally:
        sys.setswitchinterval(before)


class TestResults:
    """Large work in several threads at once gives what each gives alone."""

    @pytest.mark.parametrize("count", [2, 4])
    def test_products(self, count: int) -> None:
        inputs = [(normal(300 + 7 * k, 500, seed=k), normal(500, 290, seed=k + 50)) for k in range(count)]
        expected = [to_array(a @ b) for a, b in inputs]
        works = [lambda a=a, b=b: [to_array(a @ b) for _ in range(8)] for a, b in inputs]
        for want, got in zip(expected, in_threads(*works), strict=True):
            assert all(same_bits(want, g) for g in got)

    def test_one_program_at_many_sizes(self) -> None:
        """One region run by several threads, each at its own sizes: temporaries lie elsewhere in each."""

        def program(x: Any, w: Any) -> Any:
            h = kiln.tanh(x @ w)
            return (h @ w.t()).softmax(1) * x, h.sum(0)

        compiled, w = kiln.compile(program, wait=True), normal(90, 70)
        inputs = [normal(200 + 150 * k, 90, seed=k) for k in range(3)]
        expected = [[to_array(y) for y in program(x, w)] for x in inputs]
        works = [lambda x=x: [[to_array(y) for y in compiled(x, w)] for _ in range(6)] for x in inputs]
        for want, runs in zip(expected, in_threads(*works), strict=True):
            for got in runs:
                assert all(same_bits(a, b) for a, b in zip(want, got, strict=True))

    @WAYS
    def test_backward_in_two_threads(self, way: Any) -> None:
        """Each on its own graph, onto gradients they share: every contribution arrives, once."""
        w = normal(220, 220).requires_grad_()

        def step(x: Any) -> None:
            (x @ w).sum().backward()

        xs = [kiln.ones(180, 220) * (k + 1) for k in range(2)]
        run = way(step)
        in_threads(*(lambda x=x: [run(x) for _ in range(5)] for x in xs))
        assert np.array_equal(to_array(w.grad), np.full((220, 220), 180.0 * 3 * 5, np.float32))

    @needs_kiln
    def test_backward_through_one_graph_in_two_threads(self) -> None:
        """Two passes through shared nodes do not mix."""
        x = normal(300, 300).requires_grad_()
        h = kiln.tanh(x @ x)
        outs = [(h * (k + 1)).sum() for k in range(2)]
        expected = [to_array(kiln.autograd.grad(y, x, retain_graph=True)[0]) for y in outs]
        works = [
            lambda y=y: [to_array(kiln.autograd.grad(y, x, retain_graph=True)[0]) for _ in range(5)]
            for y in outs
        ]
        for want, got in zip(expected, in_threads(*works), strict=True):
            assert all(same_bits(want, g) for g in got)

    def test_gradients_dropped_while_another_thread_adds(self) -> None:
        """`p.grad = None` in one thread, backward in the other: neither crashes, what is left is whole."""
        w = normal(200, 200).requires_grad_()

        def add() -> None:
            for _ in range(30):
                w.sum().backward()

        def drop() -> None:
            for _ in range(300):
                w.grad = None

        in_threads(add, drop)
        assert w.grad is None or len(np.unique(to_array(w.grad))) == 1


class TestBusy:
    """An op is whole: others see its storages as before it or as after it. A kernel here takes about a
    millisecond: long enough for others to come in between, if they may.
    """

    @WAYS
    def test_reads_beside_writes(self, way: Any) -> None:
        x = kiln.zeros(1000, 1000)
        add = way(lambda: x.add_(1))

        def write() -> None:
            for _ in range(60):
                add()

        def read() -> list[Any]:
            return [np.unique(to_array(x * 1)) for _ in range(20)]

        def numbers() -> list[Any]:
            return [{v for row in values(x[:3]) for v in row} for _ in range(20)]

        _, seen, lists = in_threads(write, read, numbers)
        assert all(len(found) == 1 for found in [*seen, *lists])
        assert values(x[0, :2]) == [60.0, 60.0]

    @WAYS
    def test_writes_beside_writes(self, way: Any) -> None:
        """Two threads add to one tensor: no addition is lost."""
        x = kiln.zeros(1000, 1000)
        add = way(lambda: x.add_(1))
        in_threads(*(lambda: [add() for _ in range(40)] for _ in range(3)))
        assert np.unique(to_array(x)).tolist() == [120.0]

    @WAYS
    def test_data_exchanged_under_a_kernel(self, way: Any) -> None:
        """`x.data = ...` leaves kernels that read the old memory alone."""
        x = kiln.ones(1000, 1000)
        double = way(lambda: x * 2)

        def exchange() -> None:
            for k in range(100):
                x.data = kiln.full((1000, 1000), float(k))

        _, seen = in_threads(exchange, lambda: [np.unique(to_array(double())) for _ in range(20)])
        assert all(len(found) == 1 for found in seen)

    def test_data_exchanged_under_a_call_that_is_recorded(self) -> None:
        """What a call notes for backward after its kernel is of the tensor it was given."""
        x = kiln.ones(1000, 1000).requires_grad_()

        def exchange() -> None:
            for k in range(300):
                x.data = kiln.full((1000, 1000), float(k))

        def compute() -> list[Any]:
            return [np.unique(to_array(kiln.autograd.grad((x * 2).sum(), x)[0])).tolist() for _ in range(30)]

        assert in_threads(exchange, compute)[1] == [[2.0]] * 30

    @needs_kiln
    def test_data_exchanged_while_a_value_is_waited_for(self, monkeypatch: Any) -> None:
        """What is read after the wait is of the tensor that was asked, until the whole call has ended."""
        stored, asked = service._ANSWERS["stored region"], []

        def exchange(*arguments: Any) -> Any:
            def work() -> None:
                x.data = y
                asked.append([kiln.zeros(2, 2, dtype=kiln.int32) for _ in range(100)])

            in_threads(work)
            return stored(*arguments)

        def program(a: Any) -> Any:
            nonlocal x
            x = a * 2
            return x.tolist()

        monkeypatch.setitem(service._ANSWERS, "stored region", exchange)
        for count in range(1, 6):
            x, y = None, kiln.zeros(5, dtype=kiln.float64)
            assert kiln.compile(program)(kiln.full((2, 2), 1.5)) == [[3.0, 3.0], [3.0, 3.0]]
            assert len(asked) == count
            assert values(x) == [0.0] * 5

    @needs_kiln
    @pytest.mark.parametrize("call", ["operator", "op", "in place"])
    def test_data_exchanged_while_arguments_are_read(self, call: str) -> None:
        """A call is of the tensors it was given, whatever Python code it asks for the rest."""
        x, made = kiln.zeros(0), []

        class Two:
            def __index__(self) -> int:
                x.data = kiln.zeros(5, dtype=kiln.float64)
                made.append([kiln.zeros(2, 2, 2, dtype=kiln.int32) for _ in range(100)])
                return 2

        for _ in range(5):
            x.data = kiln.ones(2, 2)
            if call == "in place":
                with pytest.raises(RuntimeError, match=r"shape \[5\] .* broadcast shape \[2, 2\]"):
                    x *= Two()
                continue
            y = x * Two() if call == "operator" else kiln.mul(x, Two())
            assert values(y) == [[2.0, 2.0], [2.0, 2.0]]
            assert y.dtype == kiln.float32
        assert len(made) == 5

    def test_data_exchanged_in_hooks_of_two_passes(self) -> None:
        """Both are in the middle of a call at once: neither waits for the other's end."""
        both = threading.Barrier(2)
        done: list[Any] = []

        def step(size: int) -> None:
            x = kiln.ones(size, requires_grad=True)

            def exchange(p: Any) -> None:
                both.wait(60)
                p.data = kiln.zeros(size)

            x.register_post_accumulate_grad_hook(exchange)
            (x * 3).sum().backward()
            done.append((x.tolist(), x.grad.tolist()))

        threads = [threading.Thread(target=step, args=(size,), daemon=True) for size in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(done) == [([0.0], [3.0]), ([0.0, 0.0], [3.0, 3.0])]

    def test_operands_dropped_under_a_kernel(self) -> None:
        """The last name of an operand goes while its kernel runs; its memory stays until the end."""
        box = [kiln.ones(1000, 1000)]

        def compute() -> list[Any]:
            return [np.unique(to_array(kiln.tanh(box[0]))) for _ in range(20)]

        def replace() -> None:
            for _ in range(100):
                box[0] = kiln.ones(1000, 1000)

        seen, _ = in_threads(compute, replace)
        assert {len(found) for found in seen} == {1}
        assert len({found[0].item() for found in seen}) == 1


class TestRecordings:
    """A recording other threads touch is flushed first, whole and once."""

    @pytest.mark.parametrize("action", ["read", "compute", "write", "read eagerly an input", "record"])
    def test_touched_in_the_middle(self, action: str) -> None:
        meet = threading.Barrier(2)

        def program(x: Any, w: Any) -> Any:
            y = x + w
            w.mul_(2)
            meet.wait(60)
            meet.wait(60)
            return y * w, w * 1

        def other(x: Any, w: Any) -> Any:
            meet.wait(60)
            try:
                if action == "read":
                    return values(w)
                if action == "compute":
                    return values(w * 3)
                if action == "write":
                    return values(w.add_(1))
                if action == "record":
                    return values(kiln.compile(lambda: w * x)())
                return values(x * 3)
            finally:
                meet.wait(60)

        compiled = kiln.compile(program)
        for _ in range(3):
            x, w = tensor(1, 2), tensor(3, 4)
            (y, after), seen = in_threads(lambda x=x, w=w: compiled(x, w), lambda x=x, w=w: other(x, w))
            final = [7.0, 9.0] if action == "write" else [6.0, 8.0]
            expected = {"read": final, "compute": [18.0, 24.0], "write": final, "record": [6.0, 16.0]}
            assert values(after) == values(w) == final
            assert values(y) == [4.0 * final[0], 6.0 * final[1]]
            assert seen == expected.get(action, [3.0, 6.0])

    def test_shared_weights(self) -> None:
        """Threads that serve one compiled model with weights they share."""
        w, u = normal(64, 64), normal(64, 64, seed=1)

        @kiln.compile
        def serve(x: Any) -> Any:
            return kiln.softmax(kiln.tanh(x @ w) @ u, 1)

        inputs = [normal(100 + k, 64, seed=k) for k in range(4)]
        expected = [to_array(kiln.softmax(kiln.tanh(x @ w) @ u, 1)) for x in inputs]
        works = [lambda x=x: [to_array(serve(x)) for _ in range(20)] for x in inputs]
        for want, got in zip(expected, in_threads(*works), strict=True):
            assert all(same_bits(want, g) for g in got)

    def test_a_region_that_ends_while_another_waits_for_it(self) -> None:
        """The one that waits for a recording's flush outlives the recording."""

        @kiln.compile
        def make(x: Any, box: list[Any]) -> None:
            y = kiln.tanh(x @ x)
            box.append(y)
            y = y @ x
            box.append(y)

        x = normal(200, 200)
        for _ in range(10):
            box: list[Any] = []

            def look(box: list[Any] = box) -> int:
                seen = 0
                while seen < 2:
                    if len(box) > seen:
                        values(box[seen][0])
                        seen += 1
                return seen

            assert in_threads(lambda box=box: make(x, box), look)[1] == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@needs_kiln
class TestFork:
    """Rule 24: what other threads recorded is run before a fork, and no kernel of theirs runs during it."""

    def test_recordings_of_other_threads(self) -> None:
        meet = threading.Barrier(2)
        box: list[Any] = []

        @kiln.compile
        def program(x: Any) -> Any:
            box.append(x * 2 + 1)
            meet.wait(60)
            meet.wait(60)
            return box[-1] * 2

        for _ in range(3):
            worker = threading.Thread(target=lambda: box.append(program(tensor(1, 2))))
            worker.start()
            meet.wait(60)
            pid = os.fork()
            if pid == 0:
                try:
                    right = values(box[-1]) == [3.0, 5.0] and values(box[-1] + 1) == [4.0, 6.0]
                    inner = kiln.compile(lambda y: y * 3)
                    right = right and values(inner(box[-1])) == [9.0, 15.0]
                finally:
                    os._exit(0 if right else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            meet.wait(60)
            worker.join(60)
            assert values(box[-1]) == [6.0, 10.0]

    def test_recorded_between_the_flush_and_the_fork(self) -> None:
        """What a handler of others lets a thread record then is given up in the child alone."""
        code = (
            "import os, threading\n"
            "box, ready, go, done, end = [], *(threading.Event() for _ in range(4))\n"
            "os.register_at_fork(before=lambda: (go.set(), done.wait(60)))  # after what kiln does\n"
            "import kiln\n"
            "@kiln.compile\n"
            "def program(x):\n"
            "    box.append(x * 2)\n"
            "    ready.set(), go.wait(60)\n"
            "    box.append(x * 3)\n"
            "    done.set(), end.wait(60)\n"
            "thread = threading.Thread(target=program, args=(kiln.ones(2),))\n"
            "thread.start()\n"
            "assert ready.wait(60)\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    right = box[0].tolist() == [2.0, 2.0]\n"
            "    try:\n"
            "        box[1].tolist()\n"
            "    except RuntimeError as error:\n"
            "        os._exit(0 if right and 'never computed' in str(error) else 1)\n"
            "    os._exit(2)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
            "end.set(), thread.join(60)\n"
            "assert box[1].tolist() == [3.0, 3.0]\n"
        )
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")

    def test_while_kernels_run(self) -> None:
        """In the child no storage is busy, half written or locked."""
        stop, x, w = threading.Event(), kiln.zeros(300, 300), normal(300, 300)
        begun = threading.Barrier(3)

        def busy() -> None:
            begun.wait(60)
            while not stop.is_set():
                x.add_(1)
                w @ w

        def compiling() -> None:
            begun.wait(60)
            n = 1
            while not stop.is_set():
                n += 1
                kiln.compile(lambda t, n=n: (t * n + 1).sum(n % 2), wait=True)(w)

        workers = [threading.Thread(target=f) for f in (busy, compiling)]
        for worker in workers:
            worker.start()
        begun.wait(60)
        try:
            for _ in range(8):
                pid = os.fork()
                if pid == 0:
                    whole = len(np.unique(to_array(x * 1))) == 1
                    x.mul_(0)
                    made = kiln.compile(lambda t: kiln.tanh(t) * 5 - 1, wait=True)(x)
                    os._exit(0 if whole and values(made[0, :1]) == [-1.0] else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            stop.set()
            for worker in workers:
                worker.join(60)


def test_who_writes_again_and_again_lets_others_read() -> None:
    """Each write begins before a thread that was told of the last one's end has come to look."""
    x = kiln.zeros(1 << 20)
    over = threading.Event()
    seen: list[float] = []

    def write() -> None:
        while not over.is_set():
            x.add_(1)

    def read() -> None:
        seen.extend(x[:8].clone()[0].item() for _ in range(3))

    threads = [threading.Thread(target=target) for target in (write, read, read)]
    for thread in threads:
        thread.start()
    for reader in threads[1:]:
        reader.join(20)
    over.set()
    came = len(seen)
    for thread in threads:
        thread.join()
    assert came == 6
