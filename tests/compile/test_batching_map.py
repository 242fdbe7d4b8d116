"""`kiln.batching.map`: items that take turns where they read values, with the results of a loop."""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backend import needs_kiln
from strands import bump, kind  # noqa: F401 (a fixture of every test)

import kiln

pytestmark = needs_kiln


def test_results_are_those_of_a_loop_and_items_take_turns() -> None:
    """In order of items; where one reads, the next goes on."""
    log: list[tuple[int, int]] = []

    def count(n: int) -> list[float]:
        x, seen = kiln.tensor(float(n)), []
        for turn in range(n):
            log.append((turn, n))
            x = x + 1
            seen.append(x.item())
        return seen

    looped = [count(n) for n in range(4)]
    log.clear()
    assert kiln.batching.map(count, range(4)) == looped
    assert log == sorted(log)


def test_values_are_read_in_every_way() -> None:
    """`if`, int, float, item, tolist, numpy, print and an index: each waits, and gets the value."""
    read: tuple[Callable[[Any], Any], ...] = (
        bool, int, float, kiln.Tensor.item, kiln.Tensor.tolist, repr, lambda x: [10, 20, 30, 40][x],
        lambda x: x.numpy().tolist(), lambda x: x.data_ptr() != 0, lambda x: f"{x}",
    )  # fmt: skip
    order: list[int] = []

    def ask(i: int) -> Any:
        value = read[i](kiln.tensor(i % 3) + 1)
        order.append(i)
        return value

    expected = [way(kiln.tensor(i % 3 + 1)) for i, way in enumerate(read)]
    assert kiln.batching.map(ask, range(len(read))) == expected
    assert sorted(order) == list(range(len(read)))


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_limit_bounds_how_many_run(limit: int) -> None:
    """No more than that have begun and not ended; items may come from a generator, as they are needed."""
    running, most = 0, 0

    def item(i: int) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(1 + i % 3):
            bump(kiln.tensor(float(i)))
        running -= 1
        return bump(kiln.tensor(float(i)))

    taken = []

    def items() -> Iterator[int]:
        for i in range(7):
            taken.append((i, running))
            yield i

    assert kiln.batching.map(item, items(), limit=limit) == [i + 1 for i in range(7)]
    assert most == min(limit, 7)
    assert all(already < limit for _, already in taken)


def test_no_items_and_wrong_arguments() -> None:
    """An empty list; errors before anything runs."""
    assert kiln.batching.map(bump, []) == []
    for limit in (0, -1):
        with pytest.raises(ValueError, match="map: expected a limit of 1 or more"):
            kiln.batching.map(bump, [1], limit=limit)
    for limit in (True, 1.0, "2"):
        with pytest.raises(TypeError, match="map: expected a limit that is an int or None"):
            kiln.batching.map(bump, [1], limit=limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="map: expected a function"):
        kiln.batching.map(3, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not iterable"):
        kiln.batching.map(bump, 3)  # type: ignore[arg-type]


def odd_fail(i: int) -> float:
    """Fails after a value was read, for odd items."""
    value = bump(kiln.tensor(float(i)))
    if i % 2:
        raise KeyError(f"item {i} is odd")
    return value + bump(kiln.tensor(float(i)))


def test_an_exception_names_its_item_and_lets_the_others_end() -> None:
    """The first item's own exception, with its traceback and notes; effects of the others are there."""
    ended = []

    def item(i: int) -> None:
        odd_fail(i)
        ended.append(i)

    with pytest.raises(KeyError, match="item 1 is odd") as caught:
        kiln.batching.map(item, range(5))
    assert ended == [0, 2, 4]
    text = "".join(traceback.format_exception(caught.value))
    assert "in odd_fail" in text and "in item\n" in text
    assert "/batching/" not in text
    notes = caught.value.__notes__
    assert notes[0].startswith("in item 1 of 5 of kiln.batching.map(") and "item>)" not in notes[0]
    assert notes[1] == "item 3 failed too: KeyError: 'item 3 is odd'"
    assert bump(kiln.ones(())) == 2


def test_exceptions_among_the_results() -> None:
    """`return_exceptions`: each at the place of its item, with its note."""
    results = kiln.batching.map(odd_fail, range(4), return_exceptions=True)
    assert [results[0], results[2]] == [2.0, 6.0]
    assert all(isinstance(e, KeyError) and "of 4 of" in e.__notes__[0] for e in (results[1], results[3]))


def test_a_source_that_fails_ends_all_items() -> None:
    """Those that wait leave their `finally` and `with` blocks, with their own modes."""
    left: list[Any] = []

    def item(i: int) -> None:
        try:
            with kiln.no_grad():
                bump(kiln.tensor(float(i)))
                bump(kiln.tensor(float(i)))
        finally:
            left.append((i, kiln.is_grad_enabled(), bump(kiln.tensor(float(i)))))

    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the source ends")

    with pytest.raises(OSError, match="the source ends"):
        kiln.batching.map(item, items())
    assert sorted(left) == [(i, True, i + 1.0) for i in range(3)]
    assert kiln.is_grad_enabled()


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, "signal"])
def test_what_ends_a_program_ends_all_items(end: Any) -> None:
    """Ctrl-C and sys.exit() in an item: the others are left, modes and streams are back."""
    left = []

    def item(i: int) -> None:
        try:
            with kiln.no_grad():
                if i == 2 and end == "signal":
                    os.kill(os.getpid(), signal.SIGINT)
                    for _ in range(10**7):  # a thread hears of it from the main thread
                        pass
                if i == 2 and end != "signal":
                    raise end
                bump(kiln.ones(()))
        finally:
            left.append(i)

    before = sys.stdout, sys.stderr
    with pytest.raises(KeyboardInterrupt if end == "signal" else end):
        kiln.batching.map(item, range(4))
    assert sorted(left) == [0, 1, 2]  # an item that had not begun does not begin
    assert (sys.stdout, sys.stderr) == before and kiln.is_grad_enabled()
    assert kiln.batching.map(bump, [kiln.ones(())] * 3) == [2.0] * 3


def test_output_is_in_the_order_of_items() -> None:
    """Also where sys.stdout is something else, outside or inside an item; errors' stream in between."""

    def item(i: int) -> str:
        own = io.StringIO()
        print("begin", i)
        with contextlib.redirect_stdout(own) if i == 1 else contextlib.nullcontext():
            for _ in range(3 - i):
                print("value", bump(kiln.tensor(float(i))))
        print("end", i, file=sys.stderr, flush=True)
        sys.stdout.writelines(["last ", f"{i}\n"])
        return own.getvalue()

    def output(run: Callable[[], Any]) -> tuple[str, Any]:
        both = io.StringIO()
        with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
            found = run()
            print("after")
        return both.getvalue(), found

    looped = output(lambda: [item(i) for i in range(3)])
    assert output(lambda: kiln.batching.map(item, range(3))) == looped
    assert output(lambda: kiln.batching.map(item, range(3), limit=2)) == looped


def test_output_of_the_first_item_does_not_wait() -> None:
    """What the first item writes is there at once; what a later one wrote before an exception is not lost."""
    seen = io.StringIO()

    def item(i: int) -> None:
        print("begin", i)
        if i == 0:
            assert seen.getvalue().endswith("begin 0\n")
        bump(kiln.ones(()))
        print("middle", i)
        if i == 1:
            raise ValueError
        bump(kiln.ones(()))

    with contextlib.redirect_stdout(seen), pytest.raises(ValueError):
        kiln.batching.map(item, range(3))
    assert seen.getvalue() == "".join(f"begin {i}\nmiddle {i}\n" for i in range(3))


variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


def modes() -> tuple[Any, ...]:
    """What an item has of its own."""
    return (
        kiln.is_grad_enabled(), kiln.is_inference_mode_enabled(), kiln.get_default_dtype(),
        kiln.is_autocast_enabled("cpu"), variable.get(), (kiln.ones(2) * 1.5).dtype,
    )  # fmt: skip


@pytest.mark.parametrize("outside", [contextlib.nullcontext, kiln.no_grad, kiln.inference_mode])
def test_modes_are_each_items_own(outside: Any) -> None:
    """An item finds the caller's, keeps what it sets across waits, and leaves nothing behind."""

    def item(i: int) -> tuple[Any, ...]:
        found = modes()
        changes = (
            kiln.no_grad, kiln.inference_mode, lambda: kiln.autocast("cpu", kiln.bfloat16), kiln.enable_grad,
        )  # fmt: skip
        with changes[i % 4]():
            if i == 4:
                kiln.set_default_dtype(kiln.float64)
            variable.set(i + 10)
            before = modes()
            bump(kiln.ones(()))
            kept = modes() == before
            bump(kiln.ones(()))
            kept &= modes() == before
        return found, before, kept

    with outside():
        here = modes()
        variable.set(5)
        found = kiln.batching.map(item, range(5))
        assert modes() == (*here[:4], 5, here[5])
        variable.set(0)
    assert all(first == (*here[:4], 5, here[5]) for first, _, _ in found)
    assert all(kept for *_, kept in found)
    assert found[4][1][2] == kiln.float64 and kiln.get_default_dtype() == kiln.float32
    assert [before[4] for _, before, _ in found] == [10, 11, 12, 13, 14]


def test_hooks_on_saved_tensors_are_each_items_own() -> None:
    """One item's hooks see what it saves, and nothing of the others."""
    packed: list[int] = []

    def item(i: int) -> Any:
        def pack(x: Any) -> Any:
            packed.append(i)
            return x

        x = kiln.full((2,), float(i + 1)).requires_grad_()
        with (
            kiln.autograd.graph.saved_tensors_hooks(pack, lambda x: x) if i % 2 else contextlib.nullcontext()
        ):
            bump(kiln.ones(()))
            y = x * x
            bump(kiln.ones(()))
        return x, y.sum()

    found = kiln.batching.map(item, range(4))
    kiln.stack([y for _, y in found]).sum().backward()
    for i, (x, _) in enumerate(found):
        assert x.grad.tolist() == [2.0 * (i + 1)] * 2
    assert set(packed) == {1, 3}


def draws(i: int) -> list[float]:
    """Random numbers before and after a wait."""
    first = kiln.rand(2).tolist()
    bump(kiln.ones(()))
    return first + kiln.randn(1).tolist() + [float(kiln.randint(1000, (1,)))]


def test_random_numbers_are_each_items_own() -> None:
    """The same with any number of items and any limit; the caller's generator moves on by one."""
    kiln.manual_seed(3)
    found = kiln.batching.map(draws, range(4))
    after = kiln.rand(2).tolist()
    assert len({tuple(row) for row in found}) == 4
    for count, limit in ((4, 1), (4, 3), (2, None), (1, None)):
        kiln.manual_seed(3)
        assert kiln.batching.map(draws, range(count), limit=limit) == found[:count]
        assert kiln.rand(2).tolist() == after
    kiln.manual_seed(3)
    kiln.rand(1)
    assert kiln.rand(2).tolist() == after
    assert kiln.batching.map(draws, range(4)) != found

    def seeded(i: int) -> Any:
        kiln.manual_seed(i % 2)
        return draws(i)

    own = kiln.batching.map(seeded, range(4))
    assert own[0] == own[2] and own[1] == own[3] and own[0] != own[1]


def test_maps_inside_maps() -> None:
    """Inner items wait with those of other outer items; random numbers too are those of one by one."""
    log: list[int] = []

    def inner(pair: tuple[int, int]) -> list[float]:
        found = draws(0)
        log.append(pair[0])
        return [*found, bump(kiln.tensor(float(10 * pair[0] + pair[1])))]

    def outer(i: int) -> list[list[float]]:
        bump(kiln.ones(()))
        return kiln.batching.map(inner, [(i, j) for j in range(3)])

    kiln.manual_seed(1)
    found = kiln.batching.map(outer, range(3))
    assert log == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    kiln.manual_seed(1)
    assert kiln.batching.map(outer, range(3), limit=1) == found
    assert [[row[-1] for row in rows] for rows in found] == [
        [10 * i + j + 1 for j in range(3)] for i in range(3)
    ]

    def failing(i: int) -> Any:
        return kiln.batching.map(odd_fail, [0, 2, i])

    with pytest.raises(KeyError) as caught:
        kiln.batching.map(failing, range(4))
    notes = caught.value.__notes__
    assert "in item 2 of 3 of" in notes[0] and "in item 1 of 4 of" in notes[1]


def test_gradients_are_those_of_the_loop() -> None:
    """Of parameters that all items use, through values that depend on what was read."""
    kiln.manual_seed(0)
    net = kiln.nn.Sequential(kiln.nn.Linear(5, 7), kiln.nn.Tanh(), kiln.nn.Linear(7, 5))

    def walk(x: Any) -> Any:
        total = x.sum() * 0
        for _ in range(4):
            x = net(x)
            if x.sum().item() > 0:
                x = -x
            total = total + x[0, int(x.argmax())]
        return total

    starts = list(kiln.randn(6, 1, 5))
    results = []
    for run in (lambda: [walk(x) for x in starts], lambda: kiln.batching.map(walk, starts)):
        net.zero_grad()
        totals = run()
        kiln.stack(totals).sum().backward()
        results.append(([t.tolist() for t in totals], [p.grad for p in net.parameters()]))
    assert results[0][0] == results[1][0]
    for one, two in zip(results[0][1], results[1][1]):
        assert kiln.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_where_nothing_can_wait_items_run_one_by_one() -> None:
    """In a compiled function and under vmap; a compiled function in an item."""

    def two(i: int) -> Any:
        return kiln.tensor(float(i)) * 2

    @kiln.compile
    def compiled(x: Any) -> Any:
        return x + sum(kiln.batching.map(two, range(3)))

    assert [compiled(kiln.ones(2)).tolist() for _ in range(3)] == [[7.0, 7.0]] * 3
    mapped = kiln.vmap(lambda x: x + sum(kiln.batching.map(two, range(3))))(kiln.ones(2))
    assert mapped.tolist() == [7.0, 7.0]

    @kiln.compile
    def reads(x: Any) -> Any:
        y = x * 2
        return y + 1 if y.sum().item() > 3 else y - 1

    inputs = [kiln.full((2,), float(i)) for i in range(3)]
    expected = [(2.0 * i + (1 if i else -1)) for i in range(3)]
    for _ in range(3):
        assert [y[0].item() for y in kiln.batching.map(reads, inputs)] == expected


def test_hooks_and_backward_inside_items() -> None:
    """A gradient's hook that reads a value, in each item's own backward pass."""

    def item(i: int) -> tuple[list[float], list[float]]:
        x, seen = kiln.full((2,), float(i)).requires_grad_(), []
        x.register_hook(lambda grad: seen.append(grad.sum().item()))
        (x * x).sum().backward()
        return seen, x.grad.tolist()

    assert kiln.batching.map(item, range(3), limit=1) == [([4.0 * i], [2.0 * i] * 2) for i in range(3)]


def test_threads_map_at_once() -> None:
    """Each thread has its own items; a thread that reads meanwhile waits for nobody."""
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        found[n] = [kiln.batching.map(bump, [kiln.tensor(float(n + i)) for i in range(5)]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert bump(kiln.ones(())) == 2
    for thread in threads:
        thread.join()
    assert found == {10 * n: [[10.0 * n + i + 1 for i in range(5)]] * 10 for n in range(3)}


def test_generators_and_deep_calls_inside_items() -> None:
    """A wait below generators, sorted() and recursion; exceptions being handled stay an item's own."""

    def item(i: int) -> Any:
        def values() -> Iterator[float]:
            for k in range(3):
                yield bump(kiln.tensor(float(i * k)))

        def deep(n: int) -> float:
            return deep(n - 1) if n else bump(kiln.tensor(float(i)))

        try:
            raise ValueError(i)
        except ValueError as error:
            bump(kiln.ones(()))
            assert sys.exc_info()[1] is error
        order = sorted(range(3), key=lambda k: bump(kiln.tensor(float(-k))))
        return list(values()), deep(50), order

    expected = [([1.0, i + 1.0, 2 * i + 1.0], i + 1.0, [2, 1, 0]) for i in range(4)]
    assert kiln.batching.map(item, range(4)) == expected


def test_rows_of_strided_operands() -> None:
    """Columns and windows as operands of many calls, of each size of element, have the values of the loop."""
    base = kiln.arange(240).reshape(6, 5, 8)

    def item(i: int) -> list[Any]:
        whole = base[i]
        found = []
        for dtype in (kiln.int64, kiln.float32, kiln.bfloat16, kiln.uint8):
            x = whole.to(dtype)
            found += [(x[:, 1] + 1).tolist(), (x[::2, 1:7:3] + 1).tolist(), (x.t() + 1).tolist()]
        a, b = kiln.tensor([(i, i + 1), (2, 3)]).unbind(1)
        return [*found, (a * 2 + b).tolist(), whole.float()[a % 5].sum().item()]

    assert kiln.batching.map(item, range(6)) == [item(i) for i in range(6)]


def test_explain_says_how_items_take_turns(kind: str) -> None:  # noqa: F811
    """With greenlets, or with threads and what to install."""
    kiln.batching.explain(clear=True)
    kiln.batching.map(bump, [kiln.tensor(float(i)) for i in range(4)])
    text = kiln.batching.explain()
    assert "4 calls in 1 launch" in text
    last = text.splitlines()[-1]
    if kind == "greenlets":
        assert last.startswith("Items take turns as greenlets")
    else:
        assert "as threads, of which one runs at a time" in last and "pip install 'kiln[batching]'" in last
